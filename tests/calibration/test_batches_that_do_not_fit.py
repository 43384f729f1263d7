"""Calibration data that a model does not take: the error says which batch, and what to do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import goldstick
from goldstick.errors import DataError


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
