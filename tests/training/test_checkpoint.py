"""A training's checkpoint is taken by the training that left it, and by no other."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import goldstick
from goldstick.core.scatter import ScatteredBatchNorm
from goldstick.core.training import TrainingOptions
from goldstick.errors import TrainingError
from goldstick.training import TrainingTask, train
from goldstick.training.checkpoint import digest_of
from tests.support.small_networks import TinyResidual, batches

pytestmark = pytest.mark.usefixtures("reference_backend")

DATA = batches(2)
OPTIONS = TrainingOptions(epochs=1, norm_batches=0)
ANOTHER = "another network or other options"


def scattered(*kept: int) -> nn.Module:
    """A cut branch whose channels belong to these places; its weights do not say to which."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        branch = nn.Conv2d(3, len(kept), 3)
        return nn.Sequential(branch, ScatteredBatchNorm(nn.BatchNorm2d(len(kept)), kept, 4), nn.AdaptiveAvgPool2d(1))


def test_the_network_that_it_begins_with_tells_a_training_from_another(tmp_path: Path) -> None:
    start = TinyResidual()
    task = TrainingTask(batches=DATA, directory=tmp_path)
    train(copy.deepcopy(start), task, OPTIONS)
    train(copy.deepcopy(start), task, OPTIONS)
    almost = copy.deepcopy(start)
    with torch.no_grad():
        almost.classifier.bias[3] += 1e-3
    frozen = copy.deepcopy(start)
    frozen.stem.requires_grad_(False)
    for model in (almost, frozen, copy.deepcopy(start).bfloat16()):
        with pytest.raises(TrainingError, match=ANOTHER):
            train(model, task, OPTIONS)
    with pytest.raises(TrainingError, match=ANOTHER):
        train(start, TrainingTask(batches=DATA, directory=tmp_path, identity="other data"), OPTIONS)


def test_the_digest_sees_every_dtype_and_the_places_of_a_cut_and_not_the_layout_in_memory() -> None:
    assert digest_of(scattered(0, 2)) == digest_of(scattered(0, 2))
    assert digest_of(scattered(0, 2)) != digest_of(scattered(1, 3))
    model = TinyResidual()
    assert digest_of(copy.deepcopy(model).to(memory_format=torch.channels_last)) == digest_of(model)
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        assert digest_of(copy.deepcopy(model).to(dtype)) != digest_of(model)
    assert digest_of(nn.Sequential(nn.ReLU())) != digest_of(nn.Sequential(nn.GELU()))


def applied(model: nn.Module, directory: Path, *stages: dict[str, Any]) -> Any:
    return goldstick.apply(model, {"stages": stages}, training=TrainingTask(batches=DATA, directory=directory))


TRAINING = {"epochs": 1, "norm_batches": 0}
SLB = {"scheme": "w2a16-channel-asym", "training": TRAINING}
FINETUNE = {"finetune": {"training": TRAINING}}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([{"scop": {"training": TRAINING}}], [{"scop": {"training": TRAINING, "knockoffs": "gaussian"}}]),
        ([{"slb": SLB}], [{"slb": {**SLB, "temperature": 50.0, "logits_rate": 0.5}}]),
        (
            [{"scop": {"criterion": "random", "rate": 0.5}}, FINETUNE],
            [{"scop": {"criterion": "magnitude", "rate": 0.5}}, FINETUNE],
        ),
    ],
    ids=["knockoffs", "temperature", "another cut"],
)
def test_no_stage_goes_on_from_the_checkpoint_of_another_recipe(
    first: list[dict[str, Any]], second: list[dict[str, Any]], network: TinyResidual, tmp_path: Path
) -> None:
    before = applied(network, tmp_path, *first).model.state_dict()
    again = applied(network, tmp_path, *first).model.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in again.items())
    with pytest.raises(TrainingError, match=ANOTHER):
        applied(network, tmp_path, *second)


def test_a_taught_network_goes_on_with_its_teacher_only(network: TinyResidual, tmp_path: Path) -> None:
    stages = [
        {"scop": {"criterion": "magnitude", "rate": 0.5}},
        {"finetune": {"training": {**TRAINING, "distill": 1.0}}},
    ]
    applied(network, tmp_path, *stages)
    applied(network, tmp_path, *stages)
    with torch.no_grad():  # of channels that are cut, so that the fine-tuning begins with equal numbers
        gain = network.first_norm.weight
        network.first.weight[gain.abs().argmin()] *= 1.01
    with pytest.raises(TrainingError, match=ANOTHER):
        applied(network, tmp_path, *stages)
