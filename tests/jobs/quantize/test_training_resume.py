"""A run that trains goes on after its last whole epoch, to the bytes of a run that nothing stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import goldstick
from goldstick import api
from goldstick.checkpoint.staging import working_directory
from goldstick.errors import OutputError
from tests.support.stopped_trainings import Stopped, Watch, tiny_source, weights

pytestmark = pytest.mark.usefixtures("proof_here", "reference_backend")

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "bird"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a tiny model with a tokenizer."""
    return tiny_source(tmp_path_factory.mktemp("source") / "model")


def recipe(text: Path, rate: float = 0.25) -> dict[str, Any]:
    chosen = torch.randint(len(WORDS), (800,), generator=torch.Generator().manual_seed(0)).tolist()
    text.write_text(" ".join(WORDS[number] for number in chosen))
    training = {"epochs": 2, "norm_batches": 0}
    return {
        "stages": [
            {"scop": {"rate": rate, "training": {**training, "epochs": 1}}},
            {"finetune": {"training": training}},
            {"gptq": {"scheme": "w4a16-g16"}},
        ],
        "calibration": {"dataset": str(text), "samples": 6, "seq_len": 16, "training_batch": 2},
    }


@pytest.mark.parametrize(
    ("stopped", "first"),
    [
        (("2-finetune", 2), ("2-finetune", 1)),  # the gates are learned, the first epoch is not finished
        (("2-finetune", 5), ("2-finetune", 4)),  # 3 steps an epoch
        (("writing", 1), None),  # nothing is left to train
    ],
    ids=["first epoch", "second epoch", "writing"],
)
def test_a_stopped_training_goes_on_after_its_last_epoch_to_the_same_bytes(
    stopped: tuple[str, int], first: tuple[str, int] | None, source: Path, tmp_path: Path
) -> None:
    wanted = recipe(tmp_path / "text.txt")
    whole = goldstick.quantize(source, wanted, output=tmp_path / "whole")
    out = tmp_path / "out"
    with pytest.raises(Stopped) as caught:
        goldstick.quantize(source, wanted, output=out, progress=Watch(*stopped))
    assert "give --resume to go on after the last whole epoch" in caught.value.__notes__[0]
    assert not out.exists()
    with pytest.raises(OutputError, match="Give --resume"):
        goldstick.quantize(source, wanted, output=out)
    watch = Watch()
    resumed = goldstick.quantize(source, wanted, output=out, resume=True, progress=watch)
    trained = [step for step in watch.steps if step[0][0].isdigit()]
    assert trained[:1] == ([first] if first else [])
    assert weights(out) == weights(whole.directory) and weights(out)
    assert resumed.report.training == whole.report.training
    assert not working_directory(out).exists()
    again = goldstick.quantize(source, wanted, output=out, resume=True)
    assert again.finished_before


def test_the_plan_says_that_a_stopped_training_goes_on(source: Path, tmp_path: Path) -> None:
    (warning,) = [one for one in api.plan(source, recipe(tmp_path / "text.txt")).warnings if "stopped" in one]
    assert "while it is trained" in warning
    assert "--resume" in warning


def test_what_has_not_finished_an_epoch_leaves_nothing(source: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        goldstick.quantize(source, recipe(tmp_path / "text.txt"), output=tmp_path / "out", progress=Watch("1-scop", 2))
    assert not working_directory(tmp_path / "out").exists()


def test_another_recipe_or_other_data_are_refused_by_name(source: Path, tmp_path: Path) -> None:
    wanted, out = recipe(tmp_path / "text.txt"), tmp_path / "out"
    with pytest.raises(Stopped):
        goldstick.quantize(source, wanted, output=out, progress=Watch("2-finetune", 4))
    with pytest.raises(OutputError, match="another recipe"):
        goldstick.quantize(source, recipe(tmp_path / "text.txt", 0.5), output=out, resume=True)
    words = (tmp_path / "text.txt").read_text().split()
    (tmp_path / "text.txt").write_text(" ".join(reversed(words)))
    with pytest.raises(OutputError, match="another calibration data"):
        goldstick.quantize(source, wanted, output=out, resume=True)
    goldstick.quantize(source, wanted, output=out, overwrite=True)
    assert not working_directory(out).exists()
