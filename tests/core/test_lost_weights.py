"""Scales of 0 from a file: refused over codes of other numbers, where the dtype cannot have lost them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.grid import Grid
from goldstick.core.lost_weights import check_no_weight_is_lost
from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import QuantizationError

GRIDS = [
    Grid(bits=4, granularity="group", group_size=8),
    Grid(bits=4, granularity="group", group_size=8, symmetric=False),
    Grid(bits=8, granularity="channel"),
    Grid(element="e4m3", granularity="block", group_size=8),
]


def rounded(grid: Grid, weight: torch.Tensor) -> QuantizedTensor:
    return quantize_with_search(weight, grid, "minmax")


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_scale_of_zero_over_codes_of_other_numbers_is_refused(grid: Grid, dtype: torch.dtype) -> None:
    tensor = rounded(grid, torch.randn(16, 16, generator=torch.Generator().manual_seed(0)).to(dtype))
    check_no_weight_is_lost(tensor)
    spoiled = tensor.scale.clone()
    spoiled[3, 0] = 0
    lost = int((tensor.dequantize() != 0)[3, : 16 // tensor.scale.shape[1]].sum())
    with pytest.raises(QuantizationError, match=rf"^1 of its {tensor.scale.numel()} scales are 0.* {lost} weights"):
        check_no_weight_is_lost(replace(tensor, scale=spoiled))


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.label)
def test_a_scale_of_zero_over_zeros_is_what_it_says(grid: Grid) -> None:
    tensor = rounded(grid, torch.zeros(16, 16))
    check_no_weight_is_lost(replace(tensor, scale=torch.zeros_like(tensor.scale)))


def test_a_scale_too_small_for_float16_is_meant() -> None:
    tensor = rounded(GRIDS[0], torch.ones(16, 16))
    check_no_weight_is_lost(replace(tensor, scale=torch.zeros_like(tensor.scale).half()))


def test_experts_are_counted_together() -> None:
    tensor = rounded(GRIDS[0], torch.ones(2, 4, 8))
    scale = tensor.scale.clone()
    scale[1, 2] = 0
    with pytest.raises(QuantizationError, match=r"^1 of its 8 scales are 0, which makes 8 weights 0"):
        check_no_weight_is_lost(replace(tensor, scale=scale))
