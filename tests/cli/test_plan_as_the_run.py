"""A plan fails where the run would, and says which other formats the result can be exported to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from goldstick.jobs.load.find_model import reference_directory
from tests.support.commands import run
from tests.support.tiny_models import FAMILIES


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("plan") / "llama"
    FAMILIES["llama_gqa"]().to(torch.float16).save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize(
    "words",
    [
        ("--dataset", "missing.jsonl"),
        ("--dataset", "nothing"),
        ("--dataset", "wikitext2", "--data-dir", "."),
        ("--dataset", "missing.safetensors"),
    ],
)
def test_data_that_are_missing_are_the_error_of_the_run(
    llama: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    planned = run("plan", llama, "--recipe", "gptq-w4a16-g32", *words)
    made = run("quantize", llama, "-o", "out", "--recipe", "gptq-w4a16-g32", *words)
    assert planned.exit_code == made.exit_code == 1
    assert planned.stderr.splitlines()[-1].startswith("Error: ")
    assert planned.stderr.splitlines()[-1] in made.stderr


def test_a_tokenizer_that_is_missing_is_the_error_of_the_run(llama: str, tmp_path: Path) -> None:
    words = (llama, "--recipe", "gptq-w4a16-g32", "--dataset", "reference")
    planned, made = run("plan", *words), run("quantize", *words, "-o", str(tmp_path / "out"))
    assert planned.exit_code == made.exit_code == 1
    assert "its tokenizer cannot be read, since its files are missing" in planned.stderr
    assert planned.stderr.splitlines()[-1] in made.stderr
    assert run("plan", llama, "--recipe", "rtn-w4a16-g32").exit_code == 0  # which looks at no text


def test_a_task_of_the_recipe_whose_file_is_missing_fails_the_plan(llama: str, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("stages: [{rtn: {scheme: w4a16-g32}}]\nevaluate: [choice:mine.jsonl]\n")
    shown = run("plan", llama, "--recipe", str(recipe))
    assert shown.exit_code == 1
    assert f"there is no file {tmp_path / 'mine.jsonl'}" in shown.stderr
    recipe.write_text("stages: [{rtn: {scheme: w4a16-g32}}]\nevaluate: [text]\n")
    assert "give --data-dir DIR with DIR/text/heldout.txt" in run("plan", llama, "--recipe", str(recipe)).stderr
    data = reference_directory() / "data"
    assert run("plan", llama, "--recipe", str(recipe), "--data-dir", str(data)).exit_code == 0


def test_the_bundled_text_is_there_for_the_reference_model() -> None:
    assert run("plan", "reference", "--recipe", "gptq-w4a16-g128").exit_code == 0


def test_a_plan_says_what_the_result_can_be_exported_to_and_why_not(llama: str) -> None:
    words = ["plan", llama, "--recipe", "rtn-w8a8-dynamic"]
    exports = json.loads(run(*words, "--json").stdout)["exports"]
    assert exports["native"] is None
    assert "rounded activations" in exports["gptq"] and "rounded activations" in exports["awq"]
    assert "compressed-tensors" not in exports, "that is what the plan stores"
    line = next(line for line in run(*words).stdout.splitlines() if line.startswith("can be exported to: "))
    assert line == "can be exported to: " + ", ".join(name for name, reason in exports.items() if reason is None)


def test_gguf_is_named_where_the_architecture_has_a_place_in_it(llama: str, tmp_path: Path) -> None:
    words = ["--recipe", "rtn-w4a16-g32", "--json"]
    assert json.loads(run("plan", "reference", *words).stdout)["exports"]["gguf"] is None
    FAMILIES["opt"]().save_pretrained(tmp_path / "other")
    assert json.loads(run("plan", str(tmp_path / "other"), *words).stdout)["exports"]["gguf"]


def test_a_package_that_is_not_installed_keeps_no_plan_from_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)  # importing it fails, as without the extra
    found = run("plan", "reference", "--recipe", "gptq-w4a16-g32", "--json")
    assert "pip install 'goldstick[gguf]'" in json.loads(found.stdout)["exports"]["gguf"]
    assert "goldstick[gguf]" not in run("plan", "reference", "--recipe", "gptq-w4a16-g32").stderr
