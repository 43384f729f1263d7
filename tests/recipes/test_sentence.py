"""Recipes in words: every name from before is read as its file was, and what is wrong is said with what is near."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import pytest
import yaml
from click.testing import CliRunner

from goldstick.algorithms import (
    ALGORITHMS,
    AWQ,
    GPTQ,
    RTN,
    SLB,
    KVCache,
    RandomRotation,
    SLBFinish,
    SmoothQuant,
    Stage,
)
from goldstick.algorithms.base import rounds
from goldstick.cli import main
from goldstick.cli.plan import plan
from goldstick.core.mixture import MIXTURES
from goldstick.core.scheme import BLOCK_NAMES, PRESETS, Scheme
from goldstick.errors import RecipeError
from goldstick.recipes.needs_data import needs_data
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.sentence import continuations, parse
from goldstick.recipes.words import RECOMMENDED, SCHEME_LINES, SLOTS, further_words, grammar, vocabulary
from goldstick.structure.targets import Targets

ROOT = Path(__file__).parent.parent.parent
#: What the file of each name held before there was a grammar.
OLD_NAMES = json.loads((ROOT / "tests" / "data" / "recipes_of_old_names.json").read_text())


def run(*arguments: str) -> str:
    return CliRunner().invoke(main, ["recipes", *arguments], catch_exceptions=False).stdout


def narrowing(*stages: Stage) -> tuple[Stage, ...]:
    """Stages whose groups become smaller where they do not divide, as those of sentences do."""
    return tuple(
        dataclasses.replace(stage, group_size_mismatch="smaller")
        if rounds(stage) and any(one.weight.granularity == "group" and not one.weight.scale for one in stage.schemes())
        else stage
        for stage in stages
    )


def test_there_were_66_names() -> None:
    assert len(OLD_NAMES) == 66


@pytest.mark.parametrize("name", OLD_NAMES)
def test_every_name_from_before_is_the_recipe_its_file_was(name: str) -> None:
    recipe = Recipe.load(name)
    assert recipe.description
    was = Recipe.load({**OLD_NAMES[name], "description": recipe.description})
    was = was.model_copy(update={"stages": narrowing(*was.stages)})
    assert recipe == was
    assert recipe.model_dump(mode="json") == was.model_dump(mode="json")


def test_words_are_put_together_freely() -> None:
    assert Recipe.load("rotate-smoothquant-awq-gptq-w4a8-dynamic-g48-asym-kv8").stages == narrowing(
        RandomRotation(),
        SmoothQuant(),
        AWQ(quantize=False),
        GPTQ(scheme="w4a8-dynamic-g48-asym"),
        KVCache(),
    )
    assert Recipe.load("awq-slb_finish-w2a16-g16").stages == narrowing(AWQ(scheme="w2a16-g16"), SLBFinish())
    assert Recipe.load("slb-w2a16").stages == (SLB(scheme="w2a16"),)
    assert Recipe.load("rotate-kv8").stages == (RandomRotation(), KVCache())


def test_a_scheme_alone_is_rounded_to_nearest() -> None:
    assert Recipe.load("w8a16").stages == (RTN(scheme="w8a16"),)
    assert Recipe.load("w5a16-g96").stages == narrowing(RTN(scheme="w5a16-g96", range_search="mse"))


def test_activations_of_8_bits_are_dynamic_where_nothing_is_said() -> None:
    assert Recipe.load("gptq-w8a8-asym") == Recipe.load("gptq-w8a8-dynamic-asym")


def test_hqq_is_asymmetric_whether_that_is_said_or_not() -> None:
    assert Recipe.load("hqq-w3a16-g32").stages == Recipe.load("hqq-w3a16-g32-asym").stages


@pytest.mark.parametrize("method", ["rtn", "gptq", "awq"])
def test_down_projections_at_8_bits_go_with_every_method_and_keep_the_activations(method: str) -> None:
    first, second = Recipe.load(f"{method}-w4a8-static-g64-asym-down8").stages
    kind = ALGORITHMS[method]
    assert (first,) == narrowing(kind(scheme="w4a8-static-g64-asym", targets=Targets(exclude=("*down_proj",))))  # type: ignore[call-arg]
    assert second == kind(scheme="w8a8-static-asym", targets=Targets(include=("*down_proj",)))  # type: ignore[call-arg]


def test_any_words_in_their_order_are_a_recipe_or_one_that_order_and_stages_forbid() -> None:
    known = vocabulary()
    choices = [["", *(name for name, word in known.items() if word.slot == slot)] for slot in SLOTS if slot != "scheme"]
    legal, step = 0, 7  # every seventh: no slot has a multiple of that
    assert all(len(choice) % step for choice in choices)
    for words in itertools.islice(itertools.product(*choices), 0, None, step):
        text = "-".join(word for word in (*words[:6], "w4a16-g64", *words[6:]) if word)
        trains_late = "slb" in words and ({"awq", "smoothquant", "fold"} & set(words))
        try:
            stages = Recipe.load(text).stages
        except RecipeError as error:
            assert trains_late, error
            assert "put the stages that train first" in str(error)
        else:
            legal += 1
            assert not trains_late
            eight, four = KVCache(), KVCache(dtype="int4", rotate=True)
            caches = [eight] * words.count("kv8") + [four] * words.count("kv4")
            assert [stage for stage in stages if isinstance(stage, KVCache)] == caches
            assert any(isinstance(stage, RandomRotation) for stage in stages) == ("rotate" in words)
    assert legal > 300


@pytest.mark.parametrize("name", PRESETS)
def test_every_scheme_goes_into_a_sentence(name: str) -> None:
    blocks = Scheme.parse(name).weight.superblock is not None
    stage = GPTQ(scheme=name, range_search="ggml-imatrix" if blocks else "mse")
    assert Recipe.load(f"gptq-{name}").stages == narrowing(stage)


@pytest.mark.parametrize("name", [*BLOCK_NAMES, "q4_k"])
def test_block_types_have_the_searches_of_ggml(name: str) -> None:
    for word, search in (("rtn", "ggml"), ("imatrix", "ggml-imatrix"), ("gptq", "ggml-imatrix")):
        (stage,) = Recipe.load(f"{word}-{name}").stages
        assert isinstance(stage, RTN | GPTQ)
        assert (stage.scheme, stage.range_search) == (name, search)


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_is_a_whole_file(name: str) -> None:
    inner, outer = Recipe.load(f"gptq-{name}").stages
    assert inner == GPTQ(scheme=name, range_search="ggml-imatrix")
    targets = Targets(include=("@embedding", "@head"))
    assert outer == RTN(scheme=name, range_search="ggml", targets=targets, tie="keep")


def test_a_mixture_says_what_llama_cpp_calls_it() -> None:
    assert Recipe.load("rtn-q4_k_m").description.startswith("the mixture of K-quants that llama.cpp calls Q4_K_M")
    with pytest.raises(RecipeError, match=r"'down8', does not go with q4_k_m"):
        Recipe.load("rtn-q4_k_m-down8")


@pytest.mark.parametrize(
    ("text", "complaint", "near"),
    [
        ("gtpq-w4a16-g64", "word 1, 'gtpq', is not known here", "gptq-w4a16-g64"),
        ("rtn-w8a61", "word 2, 'w8a61', is not known here", "rtn-w8a16"),
        ("rtn-w4a16-g33x", "word 3, 'g33x', is not known here", "rtn-w4a16-g32"),
        ("rtn-w4a16-", "word 3, '', is not known here", "rtn-w4a16"),
        ("GPTQ-W4A16-G48", "word 1, 'GPTQ', is not known here", "gptq-w4a16-g48"),
        ("gptq-w4a16-g1", "word 3, 'g1', does not continue w4a16: .* at least 2, not 1", "gptq-w4a16"),
        ("gptq-rotate-w4a16-g64", "word 2, 'rotate', cannot follow 'gptq'", "rotate-gptq-w4a16-g64"),
        ("w4a16-g48-gptq", "word 3, 'gptq', cannot follow 'w4a16-g48'", "gptq-w4a16-g48"),
        ("rtn-gptq-w4a16-g64", "word 2, 'gptq', cannot follow 'rtn'", "gptq-w4a16-g64"),
        ("gptq-w4a16-kv8-g64", "word 4, 'g64', is not known here. Expected: the end", "gptq-w4a16-g64-kv8"),
        ("gptq-w4a16-asym-g64", "word 4, 'g64', is not known here", "gptq-w4a16-g64-asym"),
        ("gptq-w4a16-kv8-kv8", "word 4, 'kv8', cannot follow 'kv8'. Expected: the end", "gptq-w4a16-kv8"),
        ("gptq-slb-finish-w2a16-g32", "word 2, 'slb', cannot follow 'gptq'", "gptq-slb_finish-w2a16-g32"),
        (
            "gptq-kv8",
            "word 2, 'kv8', needs a scheme before it. Expected: slb_finish, learn, distill, w8a16,",
            "gptq-w4a16-g128",
        ),
        (
            "rotate-gptq",
            "after 'gptq' it needs a scheme. Expected: slb_finish, learn, distill, w8a16",
            "rotate-gptq-w4a16-g128",
        ),
        ("rtn-w8a8-down8", "word 3, 'down8', changes nothing: w8a8-dynamic has 8 bits everywhere", "rtn-w8a8"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_what_is_near(text: str, complaint: str, near: str) -> None:
    with pytest.raises(RecipeError, match=rf"No recipe is called '{text}': {complaint}") as caught:
        Recipe.load(text)
    offered = str(caught.value).split("Near it: ")[1].split(". ")[0].split(", ")
    assert near in offered
    for one in offered:
        Recipe.load(one)
    assert grammar() in str(caught.value)


def test_what_was_expected_is_every_word_that_can_stand_there() -> None:
    with pytest.raises(RecipeError, match="Expected: down8, kv8, kv4, g128, g32, g64, channel, asym, the end"):
        Recipe.load("rtn-w4a16-nothing")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gptq-slb_finish-nvfp4", r"stages\[1\].slb_finish: it searches integer codes with float scales"),
        ("awq-slb-w4a16-g32", r"stages\[1\].slb: it trains the float network, and awq comes before it"),
    ],
)
def test_stages_that_do_not_go_together_are_refused_without_a_model(text: str, complaint: str) -> None:
    with pytest.raises(RecipeError, match=f"'{text}' is illegal: {complaint}"):
        Recipe.load(text)


def test_a_very_long_sentence_is_refused_at_once() -> None:
    with pytest.raises(RecipeError, match="word 1, 'no', is not known here"):
        Recipe.load("no-" * 100_000)


def test_what_may_follow_is_found_without_searching_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    near, packages = Mock(wraps=difflib.get_close_matches), Mock(wraps=entry_points)
    monkeypatch.setattr(difflib, "get_close_matches", near)
    monkeypatch.setattr("goldstick.recipes.words.entry_points", packages)
    with pytest.raises(RecipeError, match="Expected: the end"):
        Recipe.load("gptq-w4a16-kv8-kv8")
    assert 0 < near.call_count < 10  # where every candidate looks, it is a thousand
    assert packages.call_count <= 1


def test_an_algorithm_that_is_added_is_a_word_in_the_place_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Nearest(RTN):
        """Another rounding."""

        name: ClassVar[str] = "nearest"

    assert not further_words(), "a word of goldstick's own is a line of the table"
    monkeypatch.setattr(ALGORITHMS, "_own", {**ALGORITHMS, "nearest": Nearest})
    monkeypatch.setattr("goldstick.recipes.words._others_have_some", lambda _: True)  # as if a package had added it
    assert vocabulary()["nearest"].does == "Another rounding"
    assert Recipe.load("awq-nearest-w4a16-g64").stages == narrowing(AWQ(quantize=False), Nearest(scheme="w4a16-g64"))


def test_the_list_fits_a_screen_and_what_it_recommends_is_legal() -> None:
    lines = run("list").splitlines()
    assert len(lines) <= 24  # of a terminal; a word of somebody's own may take a line
    assert max(map(len, lines)) <= 79
    assert grammar() in "".join(line.strip() for line in lines)
    assert 10 <= len(RECOMMENDED) <= 14
    for sentence, when in RECOMMENDED.items():
        assert f"{sentence:<30} {when}" in lines
        assert Recipe.load(sentence).description
    for word in ("SCHEME", *(name for name, word in vocabulary().items() if word.slot == "method")):
        assert any(word in line for line in lines)


def test_the_schemes_that_the_list_shows_are_some() -> None:
    examples = SCHEME_LINES[-1].split(": ")[1].split(", ")
    assert [Scheme.parse(name).weight.bits for name in examples] == [4, 8, 3]


@pytest.mark.parametrize("name", ["rtn-mixed-w4-w8", "rotate-kv8", "w8a8", *RECOMMENDED])
def test_what_show_prints_is_the_same_recipe_as_a_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(run("show", name))
    assert Recipe.load(path) == Recipe.load(name)
    assert ("calibration" in path.read_text()) == needs_data(Recipe.load(name).stages)


def test_show_says_of_a_file_that_it_is_no_sentence() -> None:
    refused = CliRunner().invoke(main, ["recipes", "show", "mine.yaml"])
    assert refused.exit_code == 2
    assert "No recipe is called 'mine.yaml'" in refused.stderr


def test_the_documents_have_every_word_and_every_recommendation() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert grammar() in text
    rows = [f"| `{name}` | {word.does} |" for name, word in vocabulary().items()]
    rows += [f"| `{sentence}` | {when} |" for sentence, when in RECOMMENDED.items()]
    assert [row for row in rows if row not in text] == []


def test_a_shell_completes_the_last_word() -> None:
    assert continuations("rot") == ["rotate"]
    assert continuations("gptq-w4a16-g128-k") == ["gptq-w4a16-g128-kv8", "gptq-w4a16-g128-kv4"]
    assert {"gptq-slb_finish", "gptq-w8a8", "gptq-w4a16-g128"} < set(continuations("gptq-"))
    assert not any("rtn" in one for one in continuations("gptq-"))
    assert set(RECOMMENDED) < set(continuations(""))
    (option,) = [one for one in plan.params if one.name == "recipe"]
    items = option.shell_complete(plan.make_context("plan", ["model"], resilient_parsing=True), "hqq-w4a16-a")
    assert [(item.value, item.type) for item in items] == [("hqq-w4a16-asym", "plain"), ("hqq-w4a16-a", "file")]


def test_descriptions_say_bits_grain_activations_and_methods() -> None:
    described = {
        "rotate-gptq-w4a16-g64-asym": "4-bit weights in groups of 64 with zero points; rotation, GPTQ",
        "w8a8-static": "8-bit weights per output channel and 8-bit activations, one scale per tensor",
        "kv8": "8-bit KV cache",
        "kv4": "4-bit KV cache",
    }
    assert {name: parse(name).recipe()["description"] for name in described} == described


def test_the_yaml_of_a_sentence_is_short() -> None:
    assert yaml.safe_load(run("show", "gptq-w4a16-g64"))["stages"] == [
        {"gptq": {"scheme": "w4a16-g64", "group_size_mismatch": "smaller"}}
    ]
    assert yaml.safe_load(run("show", "gptq-w4a16"))["stages"] == [{"gptq": {"scheme": "w4a16"}}]
