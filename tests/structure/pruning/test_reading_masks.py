"""Masks where layers read the channels of a group."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from goldstick.structure.network import Network
from goldstick.structure.pruning.reading_masks import reading_masks
from goldstick.structure.pruning.search import find_prunable


class Pair(nn.Module):
    """Two layers; the second is called by position or by name."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.named = nn.Linear(8, 6), nn.Linear(6, 4), named

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        found: Tensor = self.second(input=hidden) if self.named else self.second(hidden)
        return found


@pytest.mark.parametrize("named", [False, True])
def test_a_masked_unit_is_one_that_was_cut(named: bool) -> None:
    model, x = Pair(named).eval(), torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    groups, _ = find_prunable(Network(model), (x,), {}, layers={"first"})
    (group,) = groups
    mask = torch.ones(7)
    mask[2] = 0
    with reading_masks(model, group, mask):
        masked = model(x)
    with torch.no_grad():
        model.second.weight[:, 2] = 0
    assert torch.equal(masked, model(x))
    assert not model.second._forward_pre_hooks
