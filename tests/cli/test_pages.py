"""The pages that commands write, and that they leave a checkpoint as it was proven."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

import goldstick
from goldstick.errors import CheckpointError
from goldstick.jobs.evaluate.divergence import compare_predictions
from goldstick.jobs.save import finish
from goldstick.jobs.verify import verify as verify_module
from goldstick.jobs.verify.verify import verify_checkpoint
from goldstick.report.page import render_report
from tests.support.commands import run
from tests.support.pages import check_alone
from tests.support.proofs import prove_here
from tests.support.report_content import SENSITIVITY
from tests.support.tiny_models import FAMILIES
from tests.support.tiny_tokenizer import write_tokenizer


def test_quantize_writes_a_page_beside_its_report(made: Path) -> None:
    text = (made / "report.json").read_text()
    assert (made / "report.html").read_text() == render_report(text)
    page = check_alone((made / "report.html").read_text())
    for words in ("compressed with goldstick", "w4a16-g32", "left alone unless an include names it", "Peak memory"):
        assert words in page.text
    layers = json.loads(text)["layers"]
    groups = {svg["aria-label"].split(":")[0] for svg in page.all("svg") if svg["class"] == "marks"}
    assert len(groups) == 7  # the kinds of linear layers of a Llama
    assert len([layer for layer in layers if layer["scheme"]]) == 14


def test_the_page_is_no_part_of_what_is_proven(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "prove", prove_here)
    copy = Path(shutil.copytree(made, tmp_path / "copy"))
    assert "report.html" not in json.loads((copy / "goldstick.json").read_text())["files"]
    before = (copy / "report.html").read_text()
    (copy / "report.html").unlink()
    assert verify_checkpoint(copy)["passed"] is True
    shown = run("report", str(copy))
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.strip() == str(copy / "report.html")
    assert (copy / "report.html").read_text() == before
    assert verify_checkpoint(copy)["passed"] is True
    (copy / "config.json").write_text("{}")
    with pytest.raises(CheckpointError):
        verify_checkpoint(copy)


def test_a_model_saved_from_memory_has_a_page_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    module = torch.nn.Sequential(torch.nn.Linear(64, 8))
    goldstick.apply(module, "rtn-w8a16").save(tmp_path / "out")
    page = check_alone((tmp_path / "out" / "report.html").read_text())
    assert "with the hashes of those in memory" in page.text
    assert "Peak memory" not in page.text


def test_evaluate_writes_a_report_and_its_page(tmp_path: Path) -> None:
    model, data = tmp_path / "model", tmp_path / "data"
    FAMILIES["llama_gqa"]().save_pretrained(model)
    write_tokenizer(model)
    (data / "text").mkdir(parents=True)
    (data / "text" / "heldout.txt").write_text("The harbour lies on the north side of the island. " * 20)
    arguments = [
        "--tasks",
        "text",
        "--data-dir",
        str(data),
        "--report",
        str(tmp_path / "found"),
        "--baseline",
        str(model),
    ]
    shown = run("evaluate", str(model), *arguments)
    assert shown.exit_code == 0, shown.output
    page = check_alone((tmp_path / "found" / "report.html").read_text())
    assert "Of 1 metric compared, 0 worse, 0 better, 1 without a difference shown." in page.text
    assert "text perplexity (lower is better)" in page.text
    assert f"Model {model} Compared with {model} Size of its files" in page.text


def test_quantize_evaluates_before_and_after_and_compares_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    model, data, output = tmp_path / "model", tmp_path / "data", tmp_path / "out"
    FAMILIES["llama_gqa"]().save_pretrained(model)
    write_tokenizer(model)
    (data / "text").mkdir(parents=True)
    (data / "text" / "heldout.txt").write_text("The harbour lies on the north side of the island. " * 20)
    monkeypatch.setenv("GOLDSTICK_CACHE", str(tmp_path / "cache"))
    options = [
        "--recipe",
        "rtn-w4a16-g32",
        "--evaluate",
        "text",
        "--data-dir",
        str(data),
        "--group-size-mismatch",
        "channel",
    ]
    shown = run("quantize", str(model), "-o", str(output), *options)
    assert shown.exit_code == 0, shown.output
    assert "text: the predictions are" in shown.stdout
    found = json.loads((output / "report.json").read_text())["evaluation"]
    assert found["divergence"] == compare_predictions(model, output, ["text"], data_dir=data)
    assert found["divergence"]["text"]["metrics"]["token_kl"] > 0
    page = check_alone((output / "report.html").read_text())
    assert "text mean KL from before, nats a token (lower is better)" in page.text
    assert found["speed"]["before"] > 0 and found["speed"]["after"] > 0
    assert "speed: " in shown.stdout and "tokens a second" in page.text
    assert "Worst channels" in page.text
    assert "| text | likeliest token the same as before, %" in (output / "README.md").read_text()


def test_report_takes_in_what_sensitivity_found(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "copy"))
    names = [f"model.layers.{number}.mlp.up_proj" for number in range(2)]
    layers = [
        dataclasses.replace(layer, name=name, shape=(128, 64), elements=8192)
        for layer, name in zip(SENSITIVITY.layers, names, strict=False)
    ]
    measured = dataclasses.replace(SENSITIVITY, layers=tuple(layers)).to_dict()
    (tmp_path / "found.json").write_text(json.dumps(measured))
    shown = run("report", str(copy), "--sensitivity", str(tmp_path / "found.json"))
    assert shown.exit_code == 0, shown.output
    assert (copy / "report.html").read_text().count('class="cell"') == 4
    assert json.loads((copy / "report.json").read_text())["sensitivity"] == json.loads(json.dumps(measured))
    refused = run("report", str(copy), "--sensitivity", str(copy / "config.json"))
    assert refused.exit_code == 1
    assert "config.json: no sensitivity file of goldstick" in refused.stderr
    for change in ({"name": "layers.9.up"}, {"shape": (64, 64), "elements": 4096}):
        other = dataclasses.replace(SENSITIVITY, layers=(layers[0], dataclasses.replace(layers[1], **change)))  # type: ignore[arg-type]
        (tmp_path / "found.json").write_text(json.dumps(other.to_dict()))
        refused = run("report", str(copy), "--sensitivity", str(tmp_path / "found.json"))
        assert refused.exit_code == 1
        assert "found.json: it was measured on another model, 'tiny'" in refused.stderr
        assert json.loads((copy / "report.json").read_text())["sensitivity"] == json.loads(json.dumps(measured))


def test_a_directory_without_a_report_is_one_paragraph(source: Path) -> None:
    result = run("report", str(source))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "report.json: cannot be read" in result.stderr
