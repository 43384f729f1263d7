"""Whatever is wrong with the input: an exit code, one readable paragraph, nothing left behind."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM

import goldstick
from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.checkpoint.source import INDEX_NAME
from goldstick.errors import SourceError, UsageError
from tests.support.commands import Refused, change_json, quantize, run
from tests.support.tiny_models import FAMILIES


def shards(source: Path) -> list[Path]:
    return sorted(source.glob("*.safetensors"))


def test_a_directory_that_is_not_there(assert_refused: Refused, tmp_path: Path) -> None:
    assert_refused(*quantize(tmp_path / "nowhere"), says=("nowhere", "hub id", "reference"))


#: Commands with the path of a model in them.
COMMANDS = [
    "quantize {} -o {}-out",
    "plan {}",
    "sensitivity {}",
    "compare reference {}",
    "evaluate {} --tasks wikitext2",
    "generate {} --prompt once",
    "bench {}",
    "export {} --format native -o {}-out",
    "doctor {}",
    "inspect {}",
    "verify {}",
    "report {}",
]
every_command = pytest.mark.parametrize("command", COMMANDS)


@every_command
def test_every_command_says_that_a_directory_is_not_there(
    assert_refused: Refused, tmp_path: Path, command: str
) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert_refused(*command.format(nowhere, nowhere).split(), says=(f"There is no model directory {nowhere!r}.",))
    with pytest.raises(SourceError, match="There is no model directory"):
        goldstick.load(nowhere)


@every_command
def test_every_command_says_that_a_file_is_no_model(assert_refused: Refused, tmp_path: Path, command: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_text("")
    assert_refused(*command.format(file, file).split(), says=(f"{file} is a file, and a model is a directory",))


def test_a_file_that_vanishes_during_a_run_is_named(
    assert_refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanished(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "a/model.safetensors")

    monkeypatch.setattr("goldstick.jobs.compare.side_by_side.compare_models", vanished)
    arguments = ("compare", "reference", "reference", "--html", str(tmp_path / "page.html"))
    assert_refused(*arguments, says=("a/model.safetensors: No such file or directory", "run again"))


def test_a_directory_that_is_no_model(assert_refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "holidays").mkdir()
    (tmp_path / "holidays" / "photo.jpg").write_bytes(b"\xff\xd8")
    assert_refused(*quantize(tmp_path / "holidays"), says=("not a model directory", "config.json"))


def test_a_directory_without_weights(assert_refused: Refused, source: Path) -> None:
    for path in (*shards(source), source / INDEX_NAME):
        path.unlink()
    assert_refused(*quantize(source), says=("holds no weights", "model.safetensors"))


def test_a_config_that_is_no_json(assert_refused: Refused, source: Path) -> None:
    (source / "config.json").write_text('{"architectures": ["LlamaForCausalLM"')
    assert_refused(*quantize(source), says=("config.json", "JSON"))


def test_an_architecture_nobody_knows(assert_refused: Refused, source: Path) -> None:
    change_json(source / "config.json", lambda config: config.update(architectures=["LamaForCausalML"]))
    assert_refused(*quantize(source), says=("LamaForCausalML", "transformers"))


def test_a_model_type_nobody_knows(assert_refused: Refused, source: Path) -> None:
    change_json(source / "config.json", lambda config: config.update(model_type="lama"))
    assert_refused(*quantize(source), says=("config.json", "lama"))


def test_a_model_that_brings_code(assert_refused: Refused, source: Path) -> None:
    change_json(source / "config.json", lambda config: config.update(auto_map={"AutoModel": "modeling.Evil"}))
    assert_refused(*quantize(source), says=("auto_map", "does not run"))


def test_a_shard_cut_short(assert_refused: Refused, source: Path) -> None:
    shard = shards(source)[1]
    shard.write_bytes(shard.read_bytes()[:-100])
    assert_refused(*quantize(source), says=(shard.name, "cut short", "Fetch the file again"))


def test_a_shard_of_a_few_bytes(assert_refused: Refused, source: Path) -> None:
    shard = shards(source)[1]
    shard.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert_refused(*quantize(source), says=(shard.name, "safetensors"))


def test_a_shard_that_is_missing(assert_refused: Refused, source: Path) -> None:
    shards(source)[1].unlink()
    assert_refused(*quantize(source), says=(shards(source)[0].name[:5], "missing", "fetch it again"))


def test_a_shard_outside_the_directory(assert_refused: Refused, source: Path) -> None:
    shard = shards(source)[0]
    shard.rename(source.parent / "stolen.safetensors")

    def point_outside(index: dict[str, Any]) -> None:
        names = index["weight_map"]
        names.update({name: "../stolen.safetensors" for name, file in names.items() if file == shard.name})

    change_json(source / INDEX_NAME, point_outside)
    assert_refused(*quantize(source), says=("'../stolen.safetensors'", "refused"))


def test_an_index_that_names_a_tensor_twice(assert_refused: Refused, source: Path) -> None:
    text = (source / INDEX_NAME).read_text()
    name, file = re.findall(r'"(model\.[^"]+)": "([^"]+)"', text)[0]
    (source / INDEX_NAME).write_text(text.replace(f'"{name}": "{file}"', f'"{name}": "{file}",\n "{name}": "{file}"'))
    assert_refused(*quantize(source), says=(INDEX_NAME, name, "twice"))


def test_a_tensor_stored_in_two_shards(assert_refused: Refused, source: Path) -> None:
    first, second = shards(source)[:2]
    name, value = next(iter(load_file(first).items()))
    save_file({**load_file(second), name: value}, second)
    assert_refused(*quantize(source), says=(name, first.name, second.name))


def test_an_index_that_points_into_the_wrong_file(assert_refused: Refused, source: Path) -> None:
    first, second = shards(source)[:2]
    name = next(iter(load_file(first)))
    change_json(source / INDEX_NAME, lambda index: index["weight_map"].update({name: second.name}))
    assert_refused(*quantize(source), says=(name, first.name, second.name))


def test_an_index_that_promises_a_tensor_nobody_holds(assert_refused: Refused, source: Path) -> None:
    change_json(source / INDEX_NAME, lambda index: index["weight_map"].update(ghost=shards(source)[0].name))
    assert_refused(*quantize(source), says=("'ghost'", "does not hold it"))


def test_a_parameter_the_checkpoint_lacks(assert_refused: Refused, source: Path) -> None:
    change_json(source / "config.json", lambda config: config.update(num_hidden_layers=3))
    assert_refused(*quantize(source), says=("lacks the parameter", "model.layers.2"))


def test_a_weight_of_another_shape_than_the_config_says(assert_refused: Refused, source: Path) -> None:
    change_json(source / "config.json", lambda config: config.update(intermediate_size=256))
    assert_refused(*quantize(source), says=("mlp", "(64, 128)", "(64, 256)", "config.json"))


def test_a_checkpoint_of_pickles(assert_refused: Refused, source: Path) -> None:
    for path in (*shards(source), source / INDEX_NAME):
        path.unlink()
    torch.save({"x": torch.ones(1)}, source / "pytorch_model.bin")
    assert_refused(*quantize(source), says=("pytorch_model.bin", "pickles", "safetensors"))


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_a_weight_that_is_not_finite(assert_refused: Refused, source: Path, name: str, number: str) -> None:
    index = json.loads((source / INDEX_NAME).read_text())
    file = source / index["weight_map"][name]
    tensors = load_file(file)
    tensors[name].view(-1)[5] = float(number)
    save_file(tensors, file)
    assert_refused(*quantize(source), says=(name, file.name, "holds 1 value", "NaN or infinite"))


@pytest.mark.parametrize("place", ["the config", "a weight"])
def test_a_model_in_float64(assert_refused: Refused, source: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TensorInfo, "read", _no_weight)
    if place == "the config":
        change_json(source / "config.json", lambda config: config.update(dtype="float64"))
    else:
        file = shards(source)[0]
        save_file({name: value.double() for name, value in load_file(file).items()}, file)
    assert_refused(*quantize(source, "--proof", "tensors"), says=("is float64", "Convert it to float32 first"))


def test_a_checkpoint_that_is_quantized_by_a_method_nobody_knows(
    assert_refused: Refused, source: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(source, tmp_path / "other"))
    change_json(other / "config.json", lambda config: config.update(quantization_config={"quant_method": "magic"}))
    assert_refused(*quantize(other), says=("quantized with 'magic'", "does not load", "compressed-tensors"))


def test_a_group_size_that_does_not_divide(assert_refused: Refused, source: Path) -> None:
    recipe = ("--recipe", "rtn-w4a16-g128", "--group-size-mismatch", "error")
    arguments = ("quantize", str(source), "-o", str(source.parent / "out"), *recipe)
    ways_out = ("--group-size-mismatch channel", "--group-size-mismatch skip", "a group size that divides")
    assert_refused(*arguments, code=2, says=("q_proj", "64 inputs", *ways_out))


def test_a_device_that_is_not_there(assert_refused: Refused, source: Path) -> None:
    assert_refused(*quantize(source, "--device", "warp9"), code=2, says=("'warp9'", "--device cpu"))


def test_a_device_on_which_nothing_is_computed(assert_refused: Refused, source: Path) -> None:
    assert_refused(*quantize(source, "--device", "meta"), code=2, says=("'meta'", "--device cpu"))


def test_an_output_of_a_name_that_no_directory_can_have(assert_refused: Refused, source: Path) -> None:
    arguments = ("quantize", str(source), "-o", str(source.parent / ("o" * 300)), "--recipe", "rtn-w4a16-g32")
    assert_refused(*arguments, says=("300 bytes", "Choose a shorter -o"))


@pytest.mark.parametrize(
    "arguments",
    [
        "compare reference reference --threshold nan",
        "bench kernels --seconds nan",
        "bench kernels --seconds -1",
        "generate reference --prompt \udcff",
    ],
)
def test_an_option_that_no_value_is_given_for(arguments: str) -> None:
    refused = run(*arguments.split())
    assert refused.exit_code == 2
    assert "Invalid value for" in refused.stderr


def test_a_name_where_a_module_is_meant() -> None:
    with pytest.raises(UsageError, match=r"apply takes an nn\.Module, not 'reference'.*goldstick\.quantize"):
        goldstick.apply("reference", "rtn-w8a16")  # type: ignore[arg-type]


def test_a_task_that_is_not_there(assert_refused: Refused, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TensorInfo, "read", _no_weight)
    assert_refused(*quantize(source, "--evaluate", "wikitext3"), code=2, says=("wikitext3", "'wikitext2'"))
    assert_refused("evaluate", str(source), "--tasks", "wikitext3", code=2, says=("wikitext3", "'wikitext2'"))


def test_an_output_directory_that_exists(assert_refused: Refused, source: Path) -> None:
    output = source.parent / "out"
    output.mkdir()
    (output / "thesis.tex").write_text("seven years")
    assert_refused(*quantize(source), says=(str(output), "exists already", "--overwrite"))
    assert_refused(*quantize(source, "--overwrite"), says=("goldstick did not write it", "thesis")[:1])
    assert (output / "thesis.tex").read_text() == "seven years"


def test_an_output_whose_parent_is_a_file(assert_refused: Refused, source: Path) -> None:
    (source.parent / "file").write_text("")
    arguments = ("quantize", str(source), "-o", str(source.parent / "file" / "out"), "--recipe", "rtn-w4a16-g32")
    assert_refused(*arguments, says=("file", "-o"))


def test_overwrite_replaces_a_checkpoint_of_goldsticks_own(source: Path) -> None:
    output = source.parent / "out"
    assert run(*quantize(source)).exit_code == 0
    assert run(*quantize(source)).exit_code == 1
    (output / "thesis.tex").write_text("seven years")
    refused = run(*quantize(source, "--overwrite"))
    assert refused.exit_code == 1
    assert "holds what goldstick did not write there: thesis.tex" in refused.stderr
    (output / "thesis.tex").unlink()
    again = run(*quantize(source, "--overwrite", "--json"))
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["report"]["proof"]["passed"] is True
    assert sorted(path.name for path in source.parent.iterdir()) == ["llama", "out"]


def _no_weight(*_: object) -> torch.Tensor:
    raise AssertionError("a weight was read before the recipe was found wrong")


RECIPES = {
    "an_unknown_key": ("stages: [{rtn: {scheme: w8a16}}]\ncalibraton: {samples: 3}", ("calibraton", "'calibration'")),
    "an_unknown_option": ("stages: [{rtn: {sheme: w8a16}}]", ("stages[0].rtn", "sheme", "'scheme'")),
    "an_unknown_key_in_a_scheme": (
        "stages: [{rtn: {scheme: {weight: {bits: 4, symetric: true}}}}]",
        ("symetric", "'symmetric'"),
    ),
    "an_unknown_scheme": ("stages: [{rtn: {scheme: w4a16-128}}]", ("w4a16-128", "w4a16-g128")),
    "an_unknown_algorithm": ("stages: [{rnt: {scheme: w8a16}}]", ("stages[0]", "'rnt'", "'rtn'")),
    "a_value_of_the_wrong_kind": (
        "stages: [{rtn: {group_size_mismatch: perhaps}}]",
        ("group_size_mismatch", "'channel'"),
    ),
    "no_stage": ("stages: []", ("stages",)),
    "a_list_instead_of_a_mapping": ("- rtn", ("not a mapping", "stages")),
    "a_yaml_alias": ("stages: [&a {rtn: {scheme: w8a16}}, *a]", ("aliases",)),
    "a_key_given_twice": ("stages: [{rtn: {}}]\nstages: [{rtn: {}}]", ("'stages'", "twice")),
    "broken_yaml": ("stages: [{rtn: {scheme: w8a16}", ("not valid YAML", "line")),
    "python_in_yaml": ("stages: !!python/object/apply:os.system [ls]", ("not valid YAML",)),
    "another_language_version": ("goldstick: 2\nstages: [rtn]", ("goldstick",)),
    "a_pattern_that_matches_nothing": (
        "stages: [{rtn: {scheme: w8a16, targets: {exclude: ['*.donw_proj']}}}]",
        ("*.donw_proj", "down_proj"),
    ),
    "an_override_that_matches_nothing": (
        "stages: [{rtn: {scheme: w8a16, overrides: {'*.upproj': w4a16-g32}}}]",
        ("*.upproj", "overrides", "up_proj"),
    ),
    "a_layer_quantized_twice": (
        "stages: [{rtn: {scheme: w8a16}}, {rtn: {scheme: w4a16-g32, targets: {include: ['*q_proj']}}}]",
        ("q_proj", "quantized twice", "stages[1]", "exclude"),
    ),
    "zeros_that_a_symmetric_grid_does_not_have": (
        "stages: [{rtn: {scheme: w4a16-g32, range_search: hqq}}]",
        ("hqq", "w4a16-g32-asym"),
    ),
}


@pytest.mark.parametrize("case", RECIPES)
def test_a_recipe_error_names_the_place_before_any_weight_is_read(
    assert_refused: Refused, source: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TensorInfo, "read", _no_weight)
    monkeypatch.setattr("goldstick.jobs.quantize.write.load_float", _no_weight)
    text, says = RECIPES[case]
    recipe = source.parent / "recipe.yaml"
    recipe.write_text(text)
    for command in (("quantize", str(source), "-o", str(source.parent / "out")), ("plan", str(source))):
        assert_refused(*command, "--recipe", str(recipe), code=2, says=says)


def test_a_recipe_that_is_not_there(assert_refused: Refused, source: Path) -> None:
    assert_refused("plan", str(source), "--recipe", "my.yaml", code=2, says=("my.yaml", "no recipe file"))
    assert_refused(
        "plan", str(source), "--recipe", "rtn-w4a17", code=2, says=("rtn-w4a17", "rtn-w4a16", "recipes list")
    )


def test_debug_shows_the_traceback_of_an_error(tmp_path: Path) -> None:
    result = run("--debug", *quantize(tmp_path / "nowhere"))
    assert result.exit_code != 0
    assert result.exc_info is not None
    assert type(result.exception).__name__ == "SourceError"


def test_an_error_nobody_foresaw_is_one_paragraph_that_asks_for_a_report(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("goldstick.jobs.doctor.runtimes.planned.make_plan", explode)
    result = run("plan", str(source))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: goldstick met something it did not expect: ZeroDivisionError")
    assert "--debug" in result.stderr
    assert "Traceback" not in result.output


def test_inspect_and_verify_say_what_is_no_checkpoint(assert_refused: Refused, source: Path, tmp_path: Path) -> None:
    for command in ("inspect", "verify"):
        assert_refused(command, str(source), says=("goldstick.json", "no checkpoint made by goldstick"))
        assert_refused(command, str(tmp_path / "nowhere"), says=("nowhere",))


@pytest.mark.parametrize("kind", ["masked", "t5", "vit"])
def test_a_model_that_does_not_go_on_from_a_text(kind: str, assert_refused: Refused, tmp_path: Path) -> None:
    config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model: Any = BertForMaskedLM(config) if kind == "masked" else FAMILIES[kind]()
    model.save_pretrained(tmp_path / "model")
    says = (type(model).__name__, "no causal language model")
    assert_refused("generate", str(tmp_path / "model"), "--prompt", "a", code=2, says=says)
    if kind != "vit":
        arguments = ("--tasks", "text", "--data-dir", "reference")
        assert_refused("evaluate", str(tmp_path / "model"), *arguments, code=2, says=says)


@pytest.mark.parametrize("size", ["0", "-1", "1e400", "9" * 400 + "GB", "nan", "8 bananas", ""])
def test_an_amount_of_memory_that_is_none(assert_refused: Refused, source: Path, size: str) -> None:
    assert_refused(*quantize(source, f"--max-memory={size}"), code=2, says=("memory",))
