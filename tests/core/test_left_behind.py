"""References to float weights that quantized layers do not see are said."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.core.notices import UnrecognisedWarning
from goldstick.errors import StructureError


class Holding(nn.Module):
    """Reads one of its weights out of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.weights: Any = {"by name": [self.second.weight]}

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) @ self.weights["by name"][0].T


def test_a_weight_that_is_read_out_of_a_list_is_named_in_a_warning_and_in_the_report() -> None:
    with pytest.warns(UnrecognisedWarning, match=r"weights\['by name'\]\[0\] refers to the parameter second.weight"):
        result = goldstick.apply(Holding(), "rtn-w4a16-g4")
    assert any("second.weight" in warning for warning in result.report.warnings)


def test_torch_s_own_lists_of_weights_follow() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnrecognisedWarning)
        model = nn.Sequential(nn.LSTM(8, 8, 2))
        float_weight = weakref.ref(model[0].weight_hh_l0)
        goldstick.apply(model, "rtn-w4a16-g4", inplace=True)
    assert float_weight() is None, "the float weight is kept alive"


def test_numbers_in_the_place_of_a_packed_weight_are_refused() -> None:
    layer: Any = goldstick.apply(nn.Sequential(nn.Linear(8, 8)), "rtn-w4a16-g4").model[0]  # type: ignore[index]
    with pytest.raises(StructureError, match="is made of codes, and cannot be replaced by numbers"):
        layer.weight = nn.Parameter(torch.zeros(8, 8))
