"""Bias correction: the means of outputs come back, and layers without a bias say so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import goldstick


class Net(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.first, self.deep = nn.Conv2d(3, 8, 3, bias=bias), nn.Conv2d(8, 8, 3, groups=8, bias=bias)
        self.head = nn.Linear(8, 5, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.deep(self.first(x).relu()).relu().mean((2, 3)))
        return found


RTN = {"rtn": {"scheme": "w3a16-channel"}}


@pytest.mark.parametrize(
    "rounding", [RTN, {"rtn": {"scheme": "w3a8-static-shifted"}}, {"gptq": {"scheme": "w3a16-channel"}}]
)
def test_the_mean_of_every_output_is_what_it_was(rounding: dict[str, dict[str, str]]) -> None:
    torch.manual_seed(0)
    model, data = Net().eval(), [torch.rand(16, 3, 9, 9) for _ in range(3)]
    data_of = {"data": data} if rounding != RTN else {}
    plain = goldstick.apply(model, {"stages": [rounding]}, **data_of).model
    corrected = goldstick.apply(model, {"stages": [rounding, "correct_bias"]}, data=data).model
    x = torch.cat(data)
    with torch.no_grad():
        wanted = model(x).mean(0)
        far, near = ((one(x).mean(0) - wanted).norm() for one in (plain, corrected))
    assert near < 0.6 * far


def test_a_layer_without_a_bias_says_so() -> None:
    result = goldstick.apply(Net(bias=False), {"stages": [RTN, "correct_bias"]}, data=[torch.rand(4, 3, 9, 9)])
    notes = [layer.notes for layer in result.report.layers if layer.notes]
    assert notes and all(note["correct_bias"] == "the layer has no bias to correct" for note in notes)
