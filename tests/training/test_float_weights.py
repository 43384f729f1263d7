"""Networks of 16 bits train in float32, on the batches that they take and on those of float32."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import goldstick
from goldstick.training import TrainingTask
from goldstick.training.float_weights import as_held, in_float32
from tests.support.small_networks import TinyResidual, batches

pytestmark = pytest.mark.usefixtures("reference_backend")

SHORT = [torch.float16, torch.bfloat16]


def test_a_network_held_in_float32_takes_its_own_batches_and_is_left_as_it_was() -> None:
    model = TinyResidual().bfloat16().eval()
    images = batches(1)[0][0].bfloat16()
    with torch.no_grad(), in_float32(model):
        inside = model(images)
        assert torch.equal(inside, model(images.float()))
        kept = copy.deepcopy(model)
    assert inside.dtype == torch.float32
    assert not model._forward_pre_hooks
    with torch.no_grad():
        assert model(images).dtype == torch.bfloat16
        assert torch.equal(kept(images), inside)


def test_floats_of_16_and_32_bits_are_given_as_the_model_holds_them_and_nothing_else() -> None:
    ids, mask, double = torch.arange(3), torch.ones(3).bool(), torch.ones(3).double()
    given = (ids, torch.ones(3)), {"mask": mask, "pair": (torch.ones(3).half(), double)}
    args, kwargs = as_held(nn.Linear(3, 3).bfloat16(), given)
    assert args[0] is ids and kwargs["mask"] is mask and kwargs["pair"][1] is double
    assert args[1].dtype == kwargs["pair"][0].dtype == torch.bfloat16


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stage", ["finetune", "scop"])
def test_a_stage_trains_a_network_of_16_bits_with_a_teacher_on_either_kind_of_batch(
    stage: str, given: torch.dtype
) -> None:
    data = [(images.to(given), classes) for images, classes in batches(2)]
    options: dict[str, Any] = {"training": {"epochs": 1, "norm_batches": 1, "distill": 0.5}}
    result = goldstick.apply(
        TinyResidual().bfloat16().eval(), {"stages": [{stage: options}]}, training=TrainingTask(batches=data)
    )
    assert result.report.training[0]["steps"] == 2
    assert {value.dtype for value in result.model.parameters()} == {torch.bfloat16}
