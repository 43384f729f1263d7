"""Checkpoints whose scales were distilled: what is stored is what was learned, and stopped runs go on by epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import goldstick
from goldstick import api
from goldstick.checkpoint.staging import working_directory
from tests.support.calibration import seeded_llama, token_batches
from tests.support.stopped_trainings import Stopped, Watch, tiny_source, weights
from tests.support.tiny_tokenizer import write_words

pytestmark = pytest.mark.usefixtures("proof_here", "reference_backend")

LEARNING = {"epochs": 3, "rate": 0.01, "norms_rate": 0.001, "holdout": 0.25}


@pytest.mark.parametrize(
    "scheme",
    [
        "w2a16-g16-asym",
        "w8a8-dynamic",
        "w4a8-dynamic-g16",
        "w4a4-dynamic-g16",
        "w8a8-static",
        "fp8-dynamic",
        "nvfp4a16",
        "nvfp4",
    ],
)
def test_every_kind_of_scale_that_can_learns_and_is_stored(scheme: str, tmp_path: Path) -> None:
    model = seeded_llama().to(torch.bfloat16)
    recipe = {"stages": [{"rtn": {"scheme": scheme}}, {"distill": {**LEARNING, "norms_rate": 0.0}}]}
    result = goldstick.apply(model, recipe, data=token_batches(8))
    (told,) = result.report.training
    assert told["layers"] > 0 and told["norms"] == 0
    assert told["held_out"][1] <= told["held_out"][0]
    directory = result.save(tmp_path / "saved")
    stored = goldstick.load(directory).state_dict()
    for name, value in result.model.state_dict().items():
        assert torch.equal(stored[name], value), name


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a tiny model with a tokenizer."""
    return tiny_source(tmp_path_factory.mktemp("source") / "model")


def recipe(text: Path, **options: Any) -> dict[str, Any]:
    write_words(text)
    return {
        "stages": [{"gptq": {"scheme": "w2a16-g16"}}, {"distill": {**LEARNING, **options}}],
        "calibration": {"dataset": str(text), "samples": 64, "seq_len": 32},
    }


@pytest.mark.parametrize(("stopped", "first"), [(2, 1), (4, 4), (8, 7)], ids=["first", "second", "third"])
def test_a_stopped_run_goes_on_after_its_last_epoch_to_the_same_bytes(
    stopped: int, first: int, source: Path, tmp_path: Path
) -> None:
    wanted, out = recipe(tmp_path / "text.txt"), tmp_path / "out"
    whole = goldstick.quantize(source, wanted, output=tmp_path / "whole")
    with pytest.raises(Stopped):
        goldstick.quantize(source, wanted, output=out, progress=Watch("distill", stopped))
    assert not out.exists()
    watch = Watch()
    resumed = goldstick.quantize(source, wanted, output=out, resume=True, progress=watch)
    assert next(done for stage, done in watch.steps if stage == "distill") == first
    assert weights(out) == weights(whole.directory) and weights(out)
    assert resumed.report.training == whole.report.training
    assert not working_directory(out).exists()
    assert goldstick.quantize(source, wanted, output=out, resume=True).finished_before


def test_the_plan_says_what_is_held_and_what_a_stopped_run_does_again(source: Path, tmp_path: Path) -> None:
    planned = api.plan(source, recipe(tmp_path / "text.txt"))
    (warning,) = [one for one in planned.warnings if "stopped" in one]
    assert "held in memory" in warning and "--resume" in warning
    without = api.plan(source, {"stages": [{"rtn": {"scheme": "w2a16-g16"}}]})
    assert planned.least_memory > without.least_memory


def test_the_report_says_what_was_learned(source: Path, tmp_path: Path) -> None:
    goldstick.quantize(source, recipe(tmp_path / "text.txt"), output=tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "divergence held out" in page
    goldstick.quantize(source, recipe(tmp_path / "text.txt", rate=9.0), output=tmp_path / "kept")
    assert "its start was kept, whose divergence held out" in (tmp_path / "kept" / "report.html").read_text()
    goldstick.quantize(source, recipe(tmp_path / "text.txt", rate=1e30), output=tmp_path / "diverged")
    assert "its start was kept. " in (tmp_path / "diverged" / "report.html").read_text()


def test_several_processes_are_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    trained = recipe(tmp_path / "text.txt")
    trained["stages"] = [{"finetune": {}}, *trained["stages"]]
    for one in (recipe(tmp_path / "text.txt"), trained):
        with pytest.raises(goldstick.errors.UsageError, match="nothing for them to do"):
            goldstick.quantize(source, one, output=tmp_path / "out")
