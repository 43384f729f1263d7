"""Scales of scales that layers share: one number for all, however each of them was rounded."""

from __future__ import annotations

import pytest
import torch

from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.scheme import Scheme
from goldstick.recipes.shared_scales import Reach, with_reach

SCHEME = Scheme.parse("nvfp4a16")


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("largest", [21 / 128, 0.15])  # whose plain scale of scales is a power of two, and is not
def test_layers_share_one_number(plain: bool, largest: float) -> None:
    weights = {f"up.{name}": torch.rand(4, 32, dtype=torch.bfloat16) * 0.1 for name in "ab"}
    weights["up.a"][0, 0], weights["up.b"][0, 0] = largest, 0.125
    reach = Reach(dict.fromkeys(weights, SCHEME), weights.__getitem__)
    found = []
    for name, weight in weights.items():
        search = "minmax" if plain else "mse"
        tensor = quantize_with_search(weight, SCHEME.weight, search, plain=plain)  # type: ignore[arg-type]
        tensor = with_reach(tensor, weight, reach.of(name))
        found.append(tensor.global_scale)
        torch.testing.assert_close(tensor.dequantize(), weight, rtol=0.35, atol=0.02)
    assert found[0] is not None and found[1] is not None
    assert torch.equal(found[0], found[1])
