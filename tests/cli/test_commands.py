"""What the commands print, for people and for machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from goldstick.checkpoint.gguf.importance import read_importance
from goldstick.cli import main
from goldstick.recipes.words import RECOMMENDED
from tests.support.gguf_models import GGUF_MODELS
from tests.support.tiny_models import FAMILIES
from tests.support.tiny_tokenizer import write_tokenizer


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    FAMILIES["llama_gqa"]().save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def test_recipes_list_as_json_says_when_to_take_each() -> None:
    assert json.loads(run("recipes", "list", "--json").stdout) == RECOMMENDED


def test_recipes_show_prints_the_yaml_and_an_unknown_name_gives_the_nearest() -> None:
    assert "scheme: w8a16" in run("recipes", "show", "rtn-w8a16").stdout
    missing = run("recipes", "show", "rtn-w8a61")
    assert missing.exit_code == 2
    assert "rtn-w8a16" in missing.stderr


def test_recipes_schema_describes_every_algorithm_with_its_options() -> None:
    schema = json.loads(run("recipes", "schema").stdout)
    stages = schema["properties"]["stages"]["items"]["anyOf"]
    options = next(stage["properties"]["rtn"]["properties"] for stage in stages if "rtn" in stage.get("properties", {}))
    assert set(options) == {
        *("scheme", "targets", "overrides", "group_size_mismatch", "unrecognised", "tie", "range_search", "importance"),
        *("objective", "output_groups", "mix"),
    }


def test_plan_as_json_accounts_for_every_tensor_of_the_checkpoint(llama: Path) -> None:
    plan = json.loads(run("plan", str(llama), "--recipe", "rtn-w4a16-g32", "--json").stdout)
    assert sum(layer["bytes_before"] for layer in plan["layers"]) == plan["bytes_before"]
    assert sum(layer["bytes_after"] for layer in plan["layers"]) == plan["bytes_after"]
    assert plan["bytes_after"] < plan["bytes_before"]
    assert plan["format"] == "compressed-tensors"
    assert all(layer["scheme"] or layer["note"] for layer in plan["layers"])


def test_plan_names_every_illegal_combination_at_once(llama: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "stages:\n"
        "  - rtn: {scheme: w4a16-g48, targets: {include: ['*q_proj']}}\n"
        "  - rtn: {scheme: w8a16, targets: {include: ['*nothing_like_it']}}\n"
        "  - rtn: {scheme: w8a16, targets: {include: ['*up_proj']}}\n"
        "  - rtn: {scheme: w8a16, targets: {include: ['*up_proj']}}\n"
    )
    refused = run("plan", str(llama), "--recipe", str(recipe))
    assert refused.exit_code == 2
    for part in ("q_proj", "nothing_like_it", "quantized twice", "3 things"):
        assert part in refused.stderr


def test_a_dry_run_writes_nothing(llama: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    shown = run("quantize", str(llama), "-o", str(output), "--recipe", "rtn-w4a16-g32", "--dry-run")
    assert shown.exit_code == 0
    assert "q_proj" in shown.stdout
    assert list(tmp_path.iterdir()) == []


def test_options_that_change_nothing_are_noted(llama: Path, tmp_path: Path) -> None:
    arguments = ["quantize", str(llama), "-o", str(tmp_path / "out"), "--recipe", "rtn-w4a16-g32", "--dry-run"]
    options = ["--limit", "3", "--private", "--data-dir", str(tmp_path)]
    shown = run(*arguments, *options)
    assert shown.exit_code == 0
    for option in ("--limit", "--private", "--data-dir"):
        assert f"note: {option} changes nothing" in shown.stderr
    assert "note" not in run(*arguments, "--limit", "3", "--evaluate", "boolq", "--data-dir", str(tmp_path)).stderr


def test_the_flag_for_indivisible_layers_overrides_the_recipe(llama: Path) -> None:
    refused = run("plan", str(llama), "--recipe", "rtn-w4a16-g128", "--group-size-mismatch", "error")
    assert refused.exit_code == 2
    assert "--group-size-mismatch channel" in refused.stderr
    arguments = ["plan", str(llama), "--recipe", "rtn-w4a16-g128", "--json"]
    notes = [layer["note"] or "" for layer in json.loads(run(*arguments).stdout)["layers"]]
    assert "groups of 64: 64 inputs do not divide into groups of 128" in notes
    for option in ("--group-size-mismatch", "--indivisible"):
        found = run(*arguments, option, "skip")
        assert any("skipped: 64 inputs" in (layer["note"] or "") for layer in json.loads(found.stdout)["layers"])
        assert ("note: --indivisible is called --group-size-mismatch now" in found.stderr) is (
            option == "--indivisible"
        )


def test_layers_are_excluded_without_a_recipe_file(llama: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("words")
    arguments = ["plan", str(llama), "--recipe", "gptq-w4a16-g32", "--dataset", str(text)]
    plan = json.loads(run(*arguments, "--exclude", "*down_proj", "--exclude", "q_proj", "--json").stdout)
    notes = {layer["name"]: layer["note"] for layer in plan["layers"] if "_proj" in layer["name"]}
    for pattern, part in (("*down_proj", "down_proj"), ("q_proj", "q_proj")):
        excluded = [note for name, note in notes.items() if f".{part}." in name]
        assert excluded and set(excluded) == {f"excluded by the pattern {pattern!r}"}
    assert {note for name, note in notes.items() if ".up_proj." in name} == {""}
    refused = run(*arguments, "--exclude", "*down_porj")
    assert refused.exit_code == 2
    assert "'*down_porj' in targets matches no layer" in refused.stderr
    assert "down_proj" in refused.stderr


def test_help_lists_every_command_and_completion_is_a_script() -> None:
    text = run("--help").stdout
    names = "quantize plan export evaluate compare sensitivity inspect verify doctor report generate bench recipes"
    for command in (*names.split(), "chat", "serve", "importance"):
        assert command in text
    environment = os.environ | {"_GOLDSTICK_COMPLETE": "bash_source"}
    script = "from goldstick.cli import main; main(prog_name='goldstick')"
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert "complete" in found.stdout
    assert "goldstick" in found.stdout


def test_an_importance_matrix_goes_from_one_command_to_the_next(tmp_path: Path) -> None:
    GGUF_MODELS["llama"]().save_pretrained(tmp_path / "model")
    ids = tmp_path / "ids.safetensors"
    save_file({"input_ids": torch.randint(0, 120, (2, 16), generator=torch.Generator().manual_seed(3))}, ids)
    common = ("quantize", str(tmp_path / "model"), "--recipe", "imatrix-q5_0", "--format", "gguf")
    file = tmp_path / "i.gguf"
    saved = run(
        *common, "--dataset", str(ids), "--samples", "2", "-o", str(tmp_path / "a"), "--save-importance", str(file)
    )
    assert saved.exit_code == 0, saved.stderr
    taken = run(*common, "-o", str(tmp_path / "b"), "--importance", str(file))
    assert taken.exit_code == 0, taken.stderr
    assert (tmp_path / "a" / "model.gguf").read_bytes() == (tmp_path / "b" / "model.gguf").read_bytes()
    given = (str(tmp_path / "model"), "--dataset", str(ids), "--samples", "2", "-o", str(tmp_path / "float.gguf"))
    measured = run("importance", *given, "--json")
    assert measured.exit_code == 0, measured.stderr
    assert json.loads(measured.stdout)["layers"] == len(read_importance(tmp_path / "float.gguf"))
    assert json.loads(measured.stdout)["calibration"]["samples"] == 2
    again = run("importance", *given)
    assert again.exit_code == 1
    assert "float.gguf exists" in again.stderr
    refused = run("plan", str(tmp_path / "model"), "--recipe", "gptq-q5_0", "--importance", str(file))
    assert refused.exit_code == 2
    assert "takes an importance matrix" in refused.stderr
