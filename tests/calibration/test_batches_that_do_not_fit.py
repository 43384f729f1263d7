"""Calibration data that a model does not take: the error says which batch, and what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.errors import DataError, QuantizationError
from goldstick.structure.wrong_inputs import wrong_inputs


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def test_a_batch_that_does_not_run_is_named() -> None:
    data = [torch.randn(64, 7)] * 3
    with pytest.raises(
        DataError, match=r"Batch 1 of the calibration data \(input \[64, 7\]\) does not run .* leave that"
    ):
        goldstick.apply(network(), "gptq-w8a16-channel", data=data)


def test_a_later_batch_of_another_width_is_named() -> None:
    data = [torch.randn(64, 8), torch.randn(64, 8), torch.randn(64, 7)]
    with pytest.raises(DataError, match=r"Batch 3 .* reaches 0 as \[64, 7\], which it does not take"):
        goldstick.apply(network(), "gptq-w8a16-channel", data=data)


class Block(nn.Module):
    """A layer that does not take three rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 3:
            raise ValueError("no three rows.")
        found: Tensor = x + self.up(x)
        return found


class Blocks(nn.Module):
    """Two blocks, which feed one another or not."""

    def __init__(self, between: float) -> None:
        super().__init__()
        self.layers, self.between = nn.ModuleList(Block() for _ in range(2)), between

    def forward(self, x: Tensor, flag: bool = False, extra: Any = None) -> Tensor:
        first = self.layers[0](x)
        found: Tensor = self.layers[1](first if self.between == 1 else first * self.between)
        return found


@pytest.mark.parametrize(("between", "taker"), [(1, "layers.0"), (2, "this Blocks")])
@pytest.mark.parametrize("finish", [[], ["validate"]], ids=str)
def test_what_a_block_or_a_model_does_not_take_is_named_with_all_that_it_holds(
    between: float, taker: str, finish: list[str]
) -> None:
    data = [{"x": torch.randn(rows, 8), "flag": True, "extra": {"a": 1}} for rows in (4, 3, 4)]
    said = f"Batch 2 of the calibration data (x [3, 8], flag True, extra of type dict) does not run through {taker}: no"
    with pytest.raises(DataError, match=re.escape(said)):
        goldstick.apply(Blocks(between), {"stages": [{"gptq": {"scheme": "w8a16-channel"}}, *finish]}, data=data)


def test_gradients_of_the_loss_name_the_batch_too() -> None:
    data = [{"x": torch.randn(rows, 8)} for rows in (4, 3)]
    recipe = {"stages": [{"gptq": {"scheme": "w8a16-channel", "objective": "loss"}}]}
    with pytest.raises(DataError, match=r"Batch 2 .* does not run through layers\.0: no three rows\. Give"):
        goldstick.apply(Blocks(1), recipe, data=data)


def test_exhausted_memory_is_no_fault_of_the_inputs() -> None:
    with pytest.raises(RuntimeError, match="allocate"), wrong_inputs(DataError):
        torch.empty(2**60, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("stage", "remedy"), [("validate", "leave validate out, as --effort fast does"), ("learn", "set holdout: 0")]
)
def test_too_few_batches_have_the_remedy_of_the_stage_that_holds_out(stage: str, remedy: str) -> None:
    recipe = {"stages": [{"gptq": {"scheme": "w8a16-channel"}}, stage]}
    with pytest.raises(QuantizationError, match=rf"^{stage} is judged .* there is 1 batch, .* or {remedy}\.$"):
        goldstick.apply(Blocks(1), recipe, data=[torch.randn(1, 8)])
