"""Rounding onto a grid and back: a slow loop, compressed-tensors' own code, and what must hold for any numbers."""

from __future__ import annotations

import numpy
import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor, in_groups, quantize_on_grid
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError

GRIDS = [
    Grid(bits=bits, symmetric=symmetric, granularity="group" if size else "channel", group_size=size)
    for bits in (1, 2, 3, 4, 8)
    for symmetric in (True, False)
    for size in (None, 16)
]
every_grid = pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.label)


def scales_for(weight: Tensor, grid: Grid, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor | None]:
    """Scales that reach most values and clip some; whole zeros inside the codes."""
    groups = grid.groups(weight.shape[-1])
    spread = in_groups(weight.float(), grid).abs().amax(-1)
    scale = (spread * 1.6 / grid.code_max + 1e-3).to(dtype)
    zero = None if grid.symmetric else torch.randint(0, grid.code_max + 1, (*weight.shape[:-1], groups)).float()
    return scale, zero


def their_args(grid: Grid) -> QuantizationArgs:
    return QuantizationArgs(
        num_bits=grid.bits, type="int", symmetric=grid.symmetric, strategy=grid.granularity, group_size=grid.group_size
    )


def quantize_slowly(weight: Tensor, scale: Tensor, zero: Tensor | None, grid: Grid) -> list[list[int]]:
    """One number at a time; Python rounds half to even."""
    width = grid.group_width(weight.shape[-1])
    codes = []
    for o in range(weight.shape[0]):
        row = []
        for i in range(weight.shape[1]):
            ratio = numpy.float32(weight[o, i].item()) / numpy.float32(scale[o, i // width].item())
            shift = 0.0 if zero is None else zero[o, i // width].item() - grid.midpoint
            code = round(float(ratio + numpy.float32(shift))) + grid.midpoint
            row.append(min(max(code, 0), grid.code_max))
        codes.append(row)
    return codes


@every_grid
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_codes_equal_those_of_a_slow_loop(grid: Grid, dtype: torch.dtype) -> None:
    weight = torch.randn(5, 48).to(dtype)
    scale, zero = scales_for(weight, grid, dtype)
    tensor = quantize_on_grid(weight, scale, zero, grid)
    assert tensor.codes.tolist() == quantize_slowly(weight, scale, zero, grid)


@every_grid
def test_halves_go_to_the_even_neighbour_where_every_step_is_exact_in_float64(grid: Grid) -> None:
    # Multiples of a quarter over scales that are powers of two: each ratio is exact, and a quarter of them are ties.
    weight = torch.randint(-40, 41, (6, 32)).double() / 4
    scale = torch.exp2(torch.randint(-1, 2, (6, grid.groups(32))).double())
    zero = None if grid.symmetric else torch.randint(0, grid.code_max + 1, scale.shape).double()
    tensor = quantize_on_grid(weight, scale, zero, grid)
    columns = torch.arange(32) // grid.group_width(32)
    middle = float(grid.midpoint)
    exact = weight / scale[:, columns] + (0.0 if zero is None else zero[:, columns] - middle)
    expected = [[min(max(round(value) + grid.midpoint, 0), grid.code_max) for value in row] for row in exact.tolist()]
    assert tensor.codes.tolist() == expected
    assert ((exact * 2) % 2 == 1).any(), "no tie was tested"


@every_grid
def test_codes_equal_those_of_compressed_tensors_at_ties_too(grid: Grid) -> None:
    weight = torch.cat([torch.randn(8, 64), torch.randint(-20, 21, (8, 64)) / 4])
    scale, zero = scales_for(weight, grid)
    scale[8:] = 0.5
    signed_zero = None if zero is None else (zero - grid.midpoint).to(torch.int8)
    theirs = quantize(weight, scale, signed_zero, their_args(grid), dtype=torch.int8)
    ours = quantize_on_grid(weight, scale, zero, grid).codes
    assert torch.equal(ours.short() - grid.midpoint, theirs.short())


@every_grid
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dequantized_numbers_equal_those_of_compressed_tensors_bit_for_bit(grid: Grid, dtype: torch.dtype) -> None:
    weight = torch.randn(16, 64).to(dtype)
    scale, zero = scales_for(weight, grid, dtype)
    tensor = quantize_on_grid(weight, scale, zero, grid)
    signed = (tensor.codes.short() - grid.midpoint).to(torch.int8)
    signed_zero = None if zero is None else (zero - grid.midpoint).to(torch.int8)
    theirs = dequantize(signed, scale, signed_zero, their_args(grid))
    assert tensor.dequantize().dtype == dtype
    assert torch.equal(tensor.dequantize(), theirs)


@every_grid
def test_dequantizing_is_codes_minus_zero_times_scale_one_number_at_a_time(grid: Grid) -> None:
    weight = torch.randn(3, 48)
    scale, zero = scales_for(weight, grid)
    zero = None if zero is None else zero + 0.375
    tensor = quantize_on_grid(weight, scale, zero, grid)
    width = grid.group_width(48)
    found = tensor.dequantize(torch.float64)
    for o in range(3):
        for i in range(48):
            middle = float(grid.midpoint) if zero is None else zero[o, i // width].item()
            assert found[o, i].item() == (tensor.codes[o, i].item() - middle) * scale[o, i // width].item()


@given(
    bits=st.integers(1, 8),
    symmetric=st.booleans(),
    rows=st.integers(1, 4),
    groups=st.integers(1, 4),
    width=st.integers(2, 9),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_inside_the_range_no_number_moves_further_than_half_a_step(
    bits: int, symmetric: bool, rows: int, groups: int, width: int, seed: int, dtype: torch.dtype
) -> None:
    grid = Grid(bits=bits, symmetric=symmetric, granularity="group", group_size=width)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, groups * width, generator=generator).to(dtype)
    scale = (torch.rand(rows, groups, generator=generator) + 0.1).to(dtype)
    zero = None if symmetric else torch.rand(rows, groups, generator=generator) * grid.code_max
    tensor = quantize_on_grid(weight, scale, zero, grid)
    steps = scale.double().repeat_interleave(width, -1)
    middle = grid.midpoint if zero is None else zero.double().repeat_interleave(width, -1)
    position = weight.double() / steps + middle
    inside = (position >= 0) & (position <= grid.code_max)
    moved = (weight.double() - tensor.dequantize(torch.float64)).abs()
    assert (moved <= steps / 2 * (1 + 1e-4))[inside].all()
    assert ((tensor.codes == 0) | (tensor.codes == grid.code_max))[~inside].all(), "outside, the nearest end is taken"


@every_grid
def test_a_matrix_of_experts_is_quantized_as_its_experts_one_by_one(grid: Grid) -> None:
    weight = torch.randn(3, 4, 32)
    scale, zero = scales_for(weight, grid)
    together = quantize_on_grid(weight, scale, zero, grid)
    for expert in range(3):
        alone = quantize_on_grid(weight[expert], scale[expert], None if zero is None else zero[expert], grid)
        assert torch.equal(together.codes[expert], alone.codes)
        assert torch.equal(together.dequantize()[expert], alone.dequantize())


@pytest.mark.parametrize("name", ["q4_k", "q6_k", "nvfp4a16", "w4a16-g32-asym"])
@pytest.mark.parametrize("count", [1, 3])
def test_rows_are_those_of_the_numbers_also_of_one_row_and_of_none(count: int, name: str) -> None:
    grid = Scheme.parse(name).weight
    tensor = quantize_with_search(torch.randn(count, 512), grid, "minmax")
    whole = tensor.dequantize()
    for part in (slice(0, 0), slice(0, 1), torch.tensor([], dtype=torch.int64), torch.tensor([0, 0])):
        some = tensor.rows(part)
        assert torch.equal(some.dequantize(), whole[part])
        assert torch.equal(some.rows(slice(0, 0)).dequantize(), whole[:0])


@every_grid
def test_a_zero_scale_gives_the_zero_itself(grid: Grid) -> None:
    weight = torch.randn(2, 32)
    scale = torch.zeros(2, grid.groups(32))
    zero = None if grid.symmetric else torch.ones_like(scale)
    tensor = quantize_on_grid(weight, scale, zero, grid)
    assert (tensor.codes == (grid.midpoint if zero is None else 1)).all()
    assert (tensor.dequantize() == 0).all()


def test_the_last_group_of_a_row_may_be_shorter_in_a_tensor_that_is_given() -> None:
    grid = Grid(bits=4, granularity="group", group_size=4)
    codes = torch.tensor([[9, 9, 9, 9, 9, 7]], dtype=torch.uint8)
    tensor = QuantizedTensor(codes=codes, scale=torch.tensor([[1.0, 10.0]]), zero=None, grid=grid)
    assert tensor.dequantize().tolist() == [[1.0, 1.0, 1.0, 1.0, 10.0, -10.0]]


def test_a_group_size_that_does_not_divide_the_row_cannot_be_rounded_to() -> None:
    grid = Grid(bits=4, granularity="group", group_size=32)
    with pytest.raises(QuantizationError, match="172 values do not divide into groups of 32"):
        quantize_on_grid(torch.randn(2, 172), torch.ones(2, 6), None, grid)


def test_scales_of_another_shape_are_not_spread_over_the_matrix() -> None:
    grid = Grid(bits=4, granularity="group", group_size=16)
    with pytest.raises(QuantizationError, match="need scales and zeros of shape"):
        quantize_on_grid(torch.randn(2, 32), torch.ones(1, 2), None, grid)


CODES = torch.zeros(2, 32, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("codes", "scale", "zero", "symmetric", "complaint"),
    [
        (CODES.to(torch.int8), torch.ones(2, 2), None, True, "Codes are uint8"),
        (CODES, torch.ones(2, 2, dtype=torch.int32), None, True, "scales floating point"),
        (CODES, torch.ones(2, 1), None, True, "need scales and zeros of shape"),
        (CODES, torch.ones(2, 2), torch.ones(2, 1), False, "need scales and zeros of shape"),
        (CODES, torch.ones(2, 2), torch.ones(2, 2), True, "no zeros of its own"),
        (CODES, torch.ones(2, 2), None, False, "always has them"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(
    codes: Tensor, scale: Tensor, zero: Tensor | None, symmetric: bool, complaint: str
) -> None:
    grid = Grid(bits=4, symmetric=symmetric, granularity="group", group_size=16)
    with pytest.raises(QuantizationError, match=complaint):
        QuantizedTensor(codes=codes, scale=scale, zero=zero, grid=grid)
