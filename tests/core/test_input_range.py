"""The static range of an input: what compressed-tensors computes, 0 kept exactly, and nothing clipped by more than half
a step."""

from __future__ import annotations

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.utils import calculate_qparams
from hypothesis import given
from hypothesis import strategies as st

from goldstick.core.grid import Grid
from goldstick.core.input_range import input_range
from goldstick.errors import QuantizationError

VALUES = st.floats(-1e6, 1e6, width=32)
SYMMETRIC = Grid(bits=8, granularity="tensor")
SHIFTED = Grid(bits=8, symmetric=False, granularity="tensor")
both_grids = pytest.mark.parametrize("grid", [SYMMETRIC, SHIFTED], ids=["symmetric", "shifted"])


@pytest.mark.parametrize("ends", [(-1.5, 4.0), (-3.0, 0.5), (2.0, 4.0), (-4.0, -2.0), (-0.001, 1e4), (0.0, 5.1)])
@both_grids
def test_scale_and_zero_are_those_of_compressed_tensors(ends: tuple[float, float], grid: Grid) -> None:
    args = QuantizationArgs(num_bits=8, type="int", symmetric=grid.symmetric, strategy="tensor")
    their_scale, their_zero = calculate_qparams(*(torch.tensor(end) for end in ends), args)
    scale, zero = input_range(*ends, grid)
    torch.testing.assert_close(scale, their_scale[0], rtol=1e-6, atol=0)
    assert scale.dtype == torch.float32 and scale.shape == ()
    assert (zero is None) is grid.symmetric
    if zero is not None:
        assert zero.dtype == torch.int8 and zero == their_zero[0]


@both_grids
@given(low=VALUES, high=VALUES, part=st.floats(0, 1))
def test_whatever_lies_in_the_range_comes_back_within_half_a_step(
    grid: Grid, low: float, high: float, part: float
) -> None:
    low, high = min(low, high), max(low, high)
    scale, zero = (0.0 if value is None else float(value) for value in input_range(low, high, grid))
    for value in (low, high, low + part * (high - low), 0.0):
        code = min(max(round(value / scale + zero), -128), 127)
        assert abs((code - zero) * scale - value) <= 0.5 * scale * (1 + 1e-4), value
    assert (min(max(round(zero), -128), 127) - zero) * scale == 0.0, "0 is a point of the grid"


def test_a_range_on_one_side_of_0_is_finer_when_it_is_shifted() -> None:
    assert input_range(0.0, 5.1, SHIFTED)[0] < 0.51 * input_range(0.0, 5.1, SYMMETRIC)[0]


@both_grids
def test_inputs_that_are_all_0_get_the_scale_1(grid: Grid) -> None:
    assert input_range(0.0, 0.0, grid)[0] == 1.0


@pytest.mark.parametrize(
    ("low", "high"),
    [(float("nan"), 1.0), (0.0, float("inf")), (float("inf"), float("-inf")), (1.0, -1.0), (-1e300, 1e300)],
)
@both_grids
def test_ends_that_are_no_range_are_refused(low: float, high: float, grid: Grid) -> None:
    with pytest.raises(QuantizationError, match="range"):
        input_range(low, high, grid)
