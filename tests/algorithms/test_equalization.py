"""Equalization leaves the network's outputs, and makes neighbours reach equally far."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from goldstick import surgery
from goldstick.algorithms import CrossLayerEqualization
from goldstick.structure.homogeneous_pairs import Pair, find_homogeneous_pairs
from goldstick.structure.network import Network


class Separable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep, self.narrow = (
            nn.Conv2d(3, 8, 1),
            nn.Conv2d(8, 8, 3, groups=8),
            nn.Conv2d(8, 4, 1, groups=2),
        )
        self.capped, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        with torch.no_grad():
            self.wide.weight.mul_(torch.logspace(-2, 2, 8).view(-1, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.deep(self.wide(x).relu_())
        x = self.narrow(nn.functional.leaky_relu(x, 0.2))
        x = self.capped(x) + x
        found: Tensor = self.last(nn.functional.relu6(x))
        return found


def test_pairs_are_those_with_nothing_but_a_homogeneous_function_between() -> None:
    pairs = find_homogeneous_pairs(Separable(), {"x": torch.randn(1, 3, 6, 6)})
    assert pairs == [Pair(first="wide", second="deep"), Pair(first="deep", second="narrow")]


def test_outputs_stay_and_both_ends_of_a_channel_reach_equally_far() -> None:
    torch.manual_seed(0)
    model, x = Separable(), torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        before = model(x)
        surgery.apply(Network(model), CrossLayerEqualization(rounds=200).find(model, {"x": x}))
        torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-4)
    written = model.wide.weight.abs().flatten(1).amax(1)
    read = model.deep.weight.abs().flatten(1).amax(1)
    torch.testing.assert_close(written, read, rtol=1e-2, atol=0)


def test_a_channel_of_zeros_is_left_alone() -> None:
    model = Separable()
    with torch.no_grad():
        model.wide.weight[3] = 0
    edits = CrossLayerEqualization().find(model, {"x": torch.randn(1, 3, 6, 6)})
    assert all(edit.scale.isfinite().all() and (edit.scale > 0).all() for edit in edits)
