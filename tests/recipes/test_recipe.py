"""Recipes: a closed language, read from words, files and mappings, whose errors name the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from goldstick.algorithms import ALGORITHMS, AWQ, GPTQ, RTN, SLB, KVCache, RandomRotation, SmoothQuant
from goldstick.core.notices import RenamedOptionWarning
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.resolve import resolve
from goldstick.recipes.schema import recipe_schema
from goldstick.recipes.sentence import parse
from goldstick.recipes.words import RECOMMENDED
from goldstick.structure.network import Network
from goldstick.structure.targets import Targets
from tests.support.time_limit import within
from tests.support.tiny_models import FAMILIES


def stage(**options: Any) -> dict[str, Any]:
    return {"stages": [{"rtn": options}]}


@pytest.fixture(scope="module")
def llama() -> Network:
    return Network(FAMILIES["llama_gqa"]().to("meta"))


@pytest.mark.parametrize("name", RECOMMENDED)
def test_every_recommended_recipe_means_something_for_a_llama(name: str, llama: Network) -> None:
    recipe = Recipe.load(name)
    assert recipe.description
    resolution = resolve(recipe.stages, llama)
    roles = {"inner", "embedding", "head"} if "q4_k_m" in name else {"inner"}  # which is a whole file
    assert set(resolution.assignments) == {site.name for site in llama.sites if site.role in roles}


def test_a_stage_is_a_mapping_or_a_name_alone() -> None:
    assert Recipe.load({"stages": ["rtn"]}).stages == (RTN(),)
    assert Recipe.load({"stages": [{"rtn": None}]}).stages == (RTN(),)
    assert Recipe.load({"stages": [{"rtn": {}}]}).stages == (RTN(),)
    assert Recipe.load({"stages": [RTN(scheme="w8a16")]}).stages == (RTN(scheme="w8a16"),)


def test_the_example_of_the_documents_is_read(tmp_path: Path) -> None:
    text = """
    goldstick: 1                                    # optional version of the recipe language
    stages:
      - rtn: {scheme: w4a16-g128, targets: {exclude: ["*.down_proj", lm_head]}}
      - rtn: {scheme: {weight: {bits: 8, symmetric: true, granularity: channel}}, targets: {include: ["*.down_proj"]}}
    calibration: {dataset: wikitext2, samples: 128, seq_len: 2048, seed: 0}
    evaluate: [wikitext2]
    export: {format: compressed-tensors}
    """
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    recipe = Recipe.load(path)
    assert recipe == Recipe.load(str(path)) == Recipe.load(yaml.safe_load(text))
    first, second = recipe.stages
    assert first == RTN(scheme="w4a16-g128", targets=Targets(exclude=("*.down_proj", "lm_head")))
    assert second == RTN(scheme=Scheme.parse("w8a16"), targets=Targets(include=("*.down_proj",)))
    assert recipe.evaluate == ("wikitext2",)
    assert recipe.export.format == "compressed-tensors"


def test_stages_that_balance_go_before_one_that_rounds() -> None:
    rounding = GPTQ(scheme="w4a16-g64", group_size_mismatch="smaller")
    assert Recipe.load("awq-gptq-w4a16-g64").stages == (AWQ(quantize=False), rounding)
    text = {"stages": [{"smoothquant": {"alpha": "search", "targets": {"exclude": ["*o_proj"]}}}, "rtn"]}
    assert Recipe.load(text).stages == (SmoothQuant(alpha="search", targets=Targets(exclude=("*o_proj",))), RTN())
    with pytest.raises(RecipeError, match=r"stages\[0\]\.smoothquant: unknown key 'scheme'"):
        Recipe.load({"stages": [{"smoothquant": {"scheme": "w8a8-dynamic"}}]})
    with pytest.raises(RecipeError, match=r"stages\[0\]\.smoothquant: alpha is a number"):
        Recipe.load({"stages": [{"smoothquant": {"alpha": 2}}]})
    with pytest.raises(RecipeError, match=r"stages\[0\]\.awq: .*the stage that rounds"):
        Recipe.load({"stages": [{"awq": {"quantize": False, "scheme": "w4a16-g64"}}]})


MAPPINGS: list[dict[str, Any]] = [
    {"stages": ["rtn"]},
    stage(scheme="w3a16-g32-asym", range_search="hqq", overrides={"*down_proj": "w8a16-asym"}),
    {"stages": [{"smoothquant": {"alpha": "search"}}, {"awq": {"duo_scaling": "both", "grid": 4}}]},
    stage(
        scheme={"weight": {"bits": 5, "granularity": "group", "group_size": 48}},
        group_size_mismatch="skip",
        tie="untie",
    ),
    stage(
        scheme="w8a8-dynamic",
        targets={"include": ["*"], "exclude": ["lm_head"]},
        overrides={"q_proj": {"weight": {"bits": 2}, "activation": {"bits": 8, "granularity": "token"}}},
    ),
    {
        "stages": ["rtn", {"rtn": {"scheme": "w8a16"}}],
        "description": "two",
        "calibration": {"dataset": "c4", "samples": 3, "seq_len": 7, "seed": 5},
        "evaluate": ["wikitext2", "boolq"],
        "export": {"format": "native", "max_shard_size": 2_000_000},
    },
]


@pytest.mark.parametrize("mapping", [*MAPPINGS, *RECOMMENDED], ids=str)
def test_a_recipe_written_as_json_or_yaml_is_read_back_the_same(mapping: Any, tmp_path: Path) -> None:
    recipe = Recipe.load(mapping)
    dump = recipe.model_dump(mode="json")
    assert Recipe.load(dump) == recipe
    assert Recipe.load(json.loads(json.dumps(dump))) == recipe
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(dump))
    assert Recipe.load(path) == recipe
    assert Recipe.load(recipe) is recipe


def test_what_belongs_to_an_algorithm_and_is_no_option_is_not_proposed() -> None:
    with pytest.raises(RecipeError, match="unknown key 'judgements'") as caught:
        Recipe.load({"stages": ["rtn", {"learn": {"judgements": 1}}]})
    assert "did you mean 'judgements'" not in str(caught.value)


@pytest.mark.parametrize(
    ("mapping", "place", "nearest"),
    [
        ({"stage": ["rtn"]}, "'stage'", "'stages'"),
        ({"stages": ["rtn"], "calibrate": {}}, "'calibrate'", "'calibration'"),
        ({"stages": ["rtn"], "calibration": {"sample": 3}}, "'calibration.sample'", "'samples'"),
        ({"stages": ["rtn"], "export": {"fromat": "native"}}, "'export.fromat'", "'format'"),
        ({"stages": ["rtnn"]}, "stages[0]: no algorithm is called 'rtnn'", "'rtn'"),
        ({"stages": ["rtn", {"rtn": {"schem": "w8a16"}}]}, "stages[1].rtn: unknown key 'schem'", "'scheme'"),
        (stage(targets={"exlude": ["a"]}), "stages[0].rtn: unknown key 'targets.exlude'", "'exclude'"),
        (stage(scheme={"wieght": {"bits": 4}}), "stages[0].rtn: scheme.weight: Field required", "'weight'"),
        (stage(scheme={"weight": {"bitz": 4}}), "stages[0].rtn: unknown key 'scheme.weight.bitz'", "'bits'"),
        (stage(overrides={"q": {"weight": {"groupsize": 4}}}), "'overrides.q.weight.groupsize'", "'group_size'"),
    ],
)
def test_an_unknown_key_names_its_place_and_the_nearest(mapping: dict[str, Any], place: str, nearest: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(mapping)
    assert place in str(caught.value)
    assert f"did you mean {nearest}?" in str(caught.value)


@pytest.mark.parametrize(
    ("mapping", "complaint"),
    [
        ({"stages": []}, "stages: .*list that is not empty"),
        ({"stages": "rtn"}, "stages: .*a list"),
        ({"stages": [{"rtn": {}, "gptq": {}}]}, r"stages\[0\] must be one algorithm"),
        ({"stages": [3]}, r"stages\[0\] must be one algorithm"),
        ({"stages": [{"rtn": []}]}, r"stages\[0\].rtn: its options must be a mapping, not \[\]"),
        ({"stages": [{"rtn": 0}]}, r"stages\[0\].rtn: its options must be a mapping, not 0"),
        ({"stages": ["rtn"], "goldstick": 2}, "goldstick: Input should be 1"),
        ({"stages": ["rtn"], "evaluate": "wikitext2"}, "evaluate: .*a list"),
        ({"stages": ["rtn"], "calibration": {"samples": 0}}, "calibration.samples: .*greater than or equal to 1"),
        (
            {"stages": ["rtn"], "export": {"format": "onnx"}},
            "export.format: .*'auto', .*'awq', .* or '[a-z0-9-]+'",
        ),
        (
            stage(group_size_mismatch="round"),
            r"stages\[0\].rtn: group_size_mismatch: .*'error', 'smaller', 'channel' or 'skip'",
        ),
        (stage(targets={"include": "q_proj"}), r"targets.include: .*a list"),
        (stage(scheme="w4a16-128"), r"stages\[0\].rtn: No scheme is called 'w4a16-128'. Near it: .*w4a16-g128"),
        (stage(scheme={"weight": {"bits": 9}}), r"stages\[0\].rtn: A grid has 1 to 8 bits"),
        (stage(scheme={"weight": {"bits": 4.5}}), r"scheme.weight.bits: .*valid integer"),
        (stage(scheme=3), r"scheme: "),
        (stage(range_search="hqq"), r"stages\[0\].rtn: range_search hqq moves zeros"),
        ({1: 2}, "stages: Field required"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_with_its_place(mapping: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint) as caught:
        Recipe.load(mapping)
    assert "str: Input should be a valid string" not in str(caught.value), "no noise from the other form of a scheme"


@pytest.mark.parametrize("source", [3, None, ["rtn"], RTN()], ids=str)
def test_what_is_no_recipe_at_all_is_refused(source: Any) -> None:
    with pytest.raises(RecipeError, match="words such as 'gptq-w4a16-g128', a YAML file, a mapping"):
        Recipe.load(source)


@pytest.mark.parametrize(
    ("algorithm", "old", "new", "value"),
    [
        ("gptq", "asymmetric", "gptaq", True),
        ("gptq", "indivisible", "group_size_mismatch", "skip"),
        ("awq", "indivisible", "group_size_mismatch", "channel"),
    ],
)
def test_an_option_under_its_old_name_is_taken_and_the_new_name_said(
    algorithm: str, old: str, new: str, value: Any
) -> None:
    with pytest.warns(RenamedOptionWarning, match=rf"stages\[0\].{algorithm}: '{old}' is called '{new}' now"):
        recipe = Recipe.load({"stages": [{algorithm: {old: value}}]})
    assert recipe == Recipe.load({"stages": [{algorithm: {new: value}}]})
    with pytest.raises(RecipeError, match=f"'{old}' is called '{new}' now; take one of them out"):
        Recipe.load({"stages": [{algorithm: {old: value, new: value}}]})


def test_more_layers_are_left_alone_by_every_stage_with_targets() -> None:
    stages = ["rotate", {"awq": {"quantize": False}}, {"gptq": {"targets": {"exclude": ["a"]}}}, "kv_cache"]
    recipe = Recipe.load({"stages": stages})
    rotation, awq, gptq, cache = recipe.excluding("*down_proj", "a", "lm_head").stages
    assert (rotation, cache) == (RandomRotation(), KVCache())
    assert awq == AWQ(quantize=False, targets=Targets(exclude=("*down_proj", "a", "lm_head")))
    assert gptq == GPTQ(targets=Targets(exclude=("a", "*down_proj", "lm_head")))
    assert recipe.excluding() == recipe


def test_what_is_left_alone_in_addition_must_be_there(llama: Network) -> None:
    recipe = Recipe.load("gptq-w4a16-g32").excluding("*down_proj")
    resolution = resolve(recipe.stages, llama)
    assert resolution.assignments
    assert not any(name.endswith("down_proj") for name in resolution.assignments)
    with pytest.raises(RecipeError, match=r"pattern '\*down_porj' in targets matches no layer.*down_proj"):
        resolve(recipe.excluding("*down_porj").stages, llama)
    with pytest.raises(RecipeError, match="pattern '' in targets matches no layer"):
        resolve(recipe.excluding("").stages, llama)


@pytest.mark.parametrize("name", ["mine", "mine.YAML", "mine.json"])
def test_a_file_of_another_ending_is_said_to_be_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_text("stages: [rtn]\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=rf"^'{name}' is a file, but a recipe's file ends in \.yaml or \.yml"):
        Recipe.load(name)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(RecipeError, match=r"no recipe file 'nowhere/mine\.yaml'"):
        Recipe.load("nowhere/mine.yaml")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("stages: &a [rtn]\nevaluate: *a\n", "aliases"),
        ("stages: [rtn]\nexport: {}\nexport: {}\n", "'export' is given twice, the second time in line 3"),
        ("stages:\n  - rtn:\n      scheme: w8a16\n      scheme: w4a16-g32\n", "'scheme' is given twice.* line 4"),
        ("stages: [rtn]\n1: a\n1: b\n", "'1' is given twice"),
        ("stages: " + "[" * 30 + "]" * 30, "deeper than 20"),
        ("stages: [rtn]\n# " + "x" * 300_001, "larger than 300,000 bytes"),
        ("description: !!bool x\nstages: [rtn]", "not valid YAML"),
        ("description: !!int ''\nstages: [rtn]", "not valid YAML"),
        ("description: !!timestamp x\nstages: [rtn]", "not valid YAML"),
        ("stages: [rtn", "not valid YAML"),
        ("- rtn\n", "not a mapping"),
        ("", "not a mapping"),
        ("stages: [rtn]\n--- \nstages: [rtn]\n", "not valid YAML"),
        ("stages: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
        ("base: {a: 1}\n<<: {stages: [rtn]}\n", r"merge keys \(<<\) are not allowed, as in line 2"),
        ("stages: [rtn]\n? [a, b]\n: 1\n", "not valid YAML"),
        ("stages: [\x00]", "not valid YAML"),
    ],
    ids=lambda value: value[:30].strip(),
)
def test_a_file_that_is_no_plain_yaml_is_refused_by_name(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=complaint) as caught:
        Recipe.load(path)
    assert "mine.yaml" in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_bytes(b"stages: [rtn] \xff\x80")
    with pytest.raises(RecipeError, match="not valid YAML"):
        Recipe.load(path)


def problems(value: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> list[str]:
    """The parts of JSON Schema that pydantic writes; anything else in a schema fails the test."""
    if "$ref" in schema:
        schema = {**definitions[schema["$ref"].removeprefix("#/$defs/")], **schema}
    found: list[str] = []
    for keyword, rule in schema.items():
        match keyword:
            case "anyOf":
                if not any(not problems(value, option, definitions) for option in rule):
                    found.append(f"{value!r} fits no option")
            case "type":
                kinds = {
                    "object": dict,
                    "array": list,
                    "string": str,
                    "integer": int,
                    "number": (int, float),
                    "boolean": bool,
                    "null": type(None),
                }
                if not isinstance(value, kinds[rule]) or (rule in ("integer", "number") and isinstance(value, bool)):
                    found.append(f"{value!r} is no {rule}")
            case "enum":
                found += [] if value in rule else [f"{value!r} is none of {rule}"]
            case "const":
                found += [] if value == rule else [f"{value!r} is not {rule!r}"]
            case "properties":
                for key in rule.keys() & (value.keys() if isinstance(value, dict) else set()):
                    found += problems(value[key], rule[key], definitions)
            case "required":
                found += [f"{key} is missing" for key in rule if isinstance(value, dict) and key not in value]
            case "additionalProperties":
                extra = value.keys() - schema.get("properties", {}).keys() if isinstance(value, dict) else set()
                for key in extra:
                    found += [f"{key} is too much"] if rule is False else problems(value[key], rule, definitions)
            case "items":
                found += (
                    [one for item in value for one in problems(item, rule, definitions)]
                    if (isinstance(value, list))
                    else []
                )
            case "minItems":
                found += [] if not isinstance(value, list) or len(value) >= rule else ["too few"]
            case "minimum":
                found += [] if not isinstance(value, int) or value >= rule else [f"{value} is below {rule}"]
            case "maximum":
                found += [] if not isinstance(value, int) or value <= rule else [f"{value} is above {rule}"]
            case "$ref" | "$defs" | "title" | "description" | "default":
                pass
            case _:
                raise AssertionError(f"the schema uses {keyword!r}, which this check does not know")
    return found


@pytest.mark.parametrize("mapping", [*MAPPINGS, *(parse(name).recipe() for name in RECOMMENDED)], ids=str)
def test_the_json_schema_accepts_every_recommended_recipe(mapping: dict[str, Any]) -> None:
    schema = json.loads(json.dumps(recipe_schema()))
    assert problems(mapping, schema, schema["$defs"]) == []


@pytest.mark.parametrize(
    "mapping",
    [
        {},
        {"stages": []},
        {"stages": ["rtnn"]},
        {"stages": ["rtn"], "exports": {}},
        stage(schem="w8a16"),
        stage(tie="cut"),
        stage(scheme={"weight": {"bitz": 4}}),
        stage(targets={"exlude": []}),
        {"stages": [{"rtn": {}, "more": {}}]},
        {"stages": ["rtn"], "calibration": {"samples": 0}},
        {"stages": ["rtn"], "export": {"format": "onnx"}},
    ],
    ids=str,
)
def test_the_json_schema_refuses_what_a_recipe_refuses(mapping: dict[str, Any]) -> None:
    schema = json.loads(json.dumps(recipe_schema()))
    assert problems(mapping, schema, schema["$defs"])
    with pytest.raises(RecipeError):
        Recipe.load(mapping)


def test_the_json_schema_knows_every_algorithm() -> None:
    items = recipe_schema()["properties"]["stages"]["items"]["anyOf"]
    assert items[0]["enum"] == list(ALGORITHMS)
    assert [name for one in items[1:] for name in one["properties"]] == list(ALGORITHMS)


@pytest.mark.parametrize(
    ("chosen", "options", "key"),
    [
        ("finetune", {"training": {"epochs": True}}, "training.epochs: Input should be a number, not true"),
        ("slb", {"training": {"rate": False}}, "training.rate: Input should be a number, not false"),
        ("rtn", {"scheme": {"weight": {"bits": True}}}, "scheme.weight.bits: Input should be a number"),
        ("rtn", {"overrides": {"a": {"weight": {"bits": True}}}}, "overrides.a.weight.bits: Input should be a number"),
        ("finetune", {"training": {"betas": [0.9, True]}}, "training.betas.1: Input should be a number, not true"),
        ("smoothquant", {"alpha": True}, "alpha: Input should be a number, not true"),
        ("finetune", {"training": {"weight_decay": float("inf")}}, "training.weight_decay"),
        ("finetune", {"training": {"seed": 10**23}}, "training.seed is a whole number of 64 bits"),
        ("rotate", {"seed": 10**23}, "seed is a whole number of 64 bits"),
        ("slb_finish", {"seed": -(10**23)}, "seed is a whole number of 64 bits"),
        ("slb", {"logits_rate": float("inf")}, "logits_rate"),
        ("slb", {"temperature": float("inf")}, "temperature"),
    ],
)
def test_numbers_that_would_fail_or_mean_nothing_later_are_refused(chosen: str, options: Any, key: str) -> None:
    with pytest.raises(RecipeError, match=key.replace(".", r"\.")):
        Recipe.load({"stages": [{chosen: options}]})


def test_a_seed_of_the_data_has_64_bits_too() -> None:
    with pytest.raises(RecipeError, match=r"calibration\.seed"):
        Recipe.load({"stages": ["rtn"], "calibration": {"seed": 10**23}})
    assert Recipe.load({"stages": ["rtn"], "calibration": {"seed": (1 << 64) - 1}}).calibration.seed == (1 << 64) - 1


@pytest.mark.parametrize("part", ["calibration", "export", "precision"])
def test_numbers_outside_the_stages_are_not_true_or_false_either(part: str) -> None:
    key = {"calibration": "samples", "export": "max_shard_size", "precision": "bits_per_weight"}[part]
    with pytest.raises(RecipeError, match=rf"the recipe: {part}\.{key}: Input should be a number, not true"):
        Recipe.load({"stages": ["rtn"], part: {key: True}})


def test_numbers_that_yaml_reads_as_text_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("stages: [{slb: {training: {rate: 1e-3}}}]\ncalibration: {samples: '3'}\n")
    recipe = Recipe.load(path)
    assert recipe.calibration.samples == 3
    (stage,) = recipe.stages
    assert isinstance(stage, SLB)
    assert stage.training.rate == 1e-3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('description: "\\ud800"\nstages: [rtn]', "a value that no report"),
        ("stages: [{rtn: {scheme: !!binary gA==}}]", "a value that no report"),
        ("stages: [{rtn: {scheme: 2020-01-01}}]", "scheme"),
        ("stages: [{rtn: {scheme: {2020-01-01: 3}}}]", "scheme"),
        ("stages: [{rtn: {null: 3}}]", "None|null"),
        ("stages: [{rtn: {1.5: 3}}]", "1.5"),
        ("stages: [{rtn: !!set {a}}]", "unknown key|mapping"),
    ],
)
def test_values_of_other_kinds_are_refused_by_name(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=complaint):
        Recipe.load(path)


def test_a_recipe_of_a_thousand_stages_is_read_in_seconds(tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text("stages:\n" + "- rtn: {scheme: w4a16-g32}\n" * 1000)
    with within(seconds=10):
        assert len(Recipe.load(tmp_path / "many.yaml").stages) == 1000
