"""Range searches: independent slow ones, compressed-tensors' own, and what each of them promises."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from goldstick.algorithms.ranges import RangeSearch, quantize_with_search
from goldstick.core import rows
from goldstick.core.error import weight_error
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import QuantizationError

SEARCHES: list[RangeSearch] = ["minmax", "mse", "hqq"]
every_width = pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
either_symmetry = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
by_group_or_channel = pytest.mark.parametrize("size", [16, None], ids=["group", "channel"])


def grid_of(bits: int, symmetric: bool, size: int | None) -> Grid:
    return Grid(bits=bits, symmetric=symmetric, granularity="group" if size else "channel", group_size=size)


def heavy_tailed(*shape: int) -> Tensor:
    """Student's t with three degrees of freedom: a few values far out."""
    return torch.distributions.StudentT(torch.tensor(3.0)).sample(torch.Size(shape))


def norm(weight: Tensor, tensor: QuantizedTensor, power: float) -> Tensor:
    """Σ|w − ŵ|^power of each group of 16."""
    difference = (weight - tensor.dequantize()).double().abs().pow(power)
    return difference.unflatten(-1, (-1, tensor.grid.group_width(weight.shape[-1]))).sum(-1)


@every_width
@either_symmetry
@by_group_or_channel
def test_minmax_scales_zeros_and_codes_equal_those_of_compressed_tensors(
    bits: int, symmetric: bool, size: int | None
) -> None:
    weight = torch.cat([torch.randn(16, 64), torch.rand(8, 64) + 1, -torch.rand(8, 64) - 1])
    grid = grid_of(bits, symmetric, size)
    args = QuantizationArgs(
        num_bits=bits, type="int", symmetric=symmetric, strategy=grid.granularity, group_size=grid.group_size
    )
    grouped = weight.unflatten(-1, (-1, size or 64))
    scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), args)
    tensor = quantize_with_search(weight, grid, "minmax")
    assert torch.equal(tensor.scale, scale)
    if tensor.zero is not None:
        assert torch.equal(tensor.zero, zero.float() + grid.midpoint)
    theirs = quantize(weight, scale, zero, args, dtype=torch.int8)
    assert torch.equal(tensor.codes.short() - grid.midpoint, theirs.short())


@every_width
def test_the_symmetric_scale_is_the_largest_magnitude_over_half_the_codes(bits: int) -> None:
    weight = torch.randn(4, 32)
    tensor = quantize_with_search(weight, grid_of(bits, True, None), "minmax")
    expected = weight.abs().amax(-1, keepdim=True) / ((2**bits - 1) / 2)
    torch.testing.assert_close(tensor.scale, expected, rtol=1e-6, atol=0)


@every_width
def test_an_asymmetric_range_always_contains_zero(bits: int) -> None:
    weight = torch.cat([torch.rand(4, 32) + 3, -torch.rand(4, 32) - 3])
    tensor = quantize_with_search(weight, grid_of(bits, False, None), "minmax")
    assert tensor.zero is not None
    assert (tensor.zero[:4] == 0).all()
    assert (tensor.zero[4:] == tensor.grid.code_max).all()


def search_slowly(values: list[float], bits: int, symmetric: bool) -> tuple[float, float]:
    """GPTQ's shrinking range on one group, a number at a time in float32; scale and zero."""
    single = numpy.float32
    top = 2**bits - 1
    low, high = min([*values, 0.0]), max([*values, 0.0])
    if symmetric:
        high = max(-low, high)
        low = -high
    best, best_scale, best_zero = math.inf, 0.0, 0.0
    for step in range(80):
        ratio = single(1 - step / 100)
        lower, upper = single(low) * ratio, single(high) * ratio
        scale = (upper - lower) / single(top)
        zero = 2 ** (bits - 1) if symmetric else min(max(round(float(-lower / scale)), 0), top)
        error = 0.0
        for value in values:
            code = min(max(round(float(single(value) / scale)) + zero, 0), top)
            error += abs(float((code - zero) * scale - single(value))) ** 2.5
        if error < best:
            best, best_scale, best_zero = error, float(scale), float(zero)
    return best_scale, best_zero


@pytest.mark.parametrize("bits", [2, 3, 4])
@either_symmetry
def test_mse_finds_ranges_as_good_as_a_slow_search(bits: int, symmetric: bool) -> None:
    weight = heavy_tailed(3, 32)
    tensor = quantize_with_search(weight, grid_of(bits, symmetric, 16), "mse")
    same = 0
    for row, group in itertools.product(range(3), range(2)):
        values = weight[row, group * 16 : group * 16 + 16].tolist()
        scale, zero = search_slowly(values, bits, symmetric)
        ours = tensor.scale[row, group].item()
        middle = tensor.grid.midpoint if tensor.zero is None else tensor.zero[row, group].item()
        same += math.isclose(ours, scale, rel_tol=1e-6) and middle == zero
    assert same == 6


@every_width
@either_symmetry
@by_group_or_channel
def test_mse_is_never_worse_than_minmax_in_its_norm(bits: int, symmetric: bool, size: int | None) -> None:
    weight = heavy_tailed(24, 64)
    grid = grid_of(bits, symmetric, size)
    searched = norm(weight, quantize_with_search(weight, grid, "mse"), 2.5)
    plain = norm(weight, quantize_with_search(weight, grid, "minmax"), 2.5)
    assert (searched <= plain * (1 + 1e-5)).all(), "in each group by itself"
    if bits in (2, 3, 4):
        assert searched.sum() < 0.98 * plain.sum(), "and on such weights better altogether"


def refine_slowly(values: Tensor, scale: float, zero: float, top: int) -> float:
    """HQQ on one group in float64: the least mean error that it comes by."""
    best_error, beta = math.inf, 10.0
    for _ in range(20):
        codes = (values / scale + zero).round().clamp(0, top)
        residual = values - (codes - zero) * scale
        best_error = min(best_error, residual.abs().mean().item())
        shrunk = residual.sign() * torch.relu(residual.abs() - residual.abs() ** (0.7 - 1) / beta)
        zero = (codes - (values - shrunk) / scale).mean().item()
        beta *= 1.01
    return best_error


@pytest.mark.parametrize("bits", [2, 4])
def test_hqq_moves_each_zero_to_as_good_a_place_as_a_slow_search(bits: int) -> None:
    weight = heavy_tailed(4, 32)
    grid = grid_of(bits, False, 16)
    start = quantize_with_search(weight, grid, "minmax")
    tensor = quantize_with_search(weight, grid, "hqq")
    assert start.zero is not None and tensor.zero is not None
    assert torch.equal(tensor.scale, start.scale), "only zeros move"
    for row, group in itertools.product(range(4), range(2)):
        values = weight[row, group * 16 : group * 16 + 16].double()
        scale, zero = start.scale[row, group].item(), start.zero[row, group].item()
        expected = refine_slowly(values, scale, zero, grid.code_max)
        error = (values - tensor.dequantize()[row, group * 16 : group * 16 + 16]).abs().mean().item()
        assert error == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_hqq_lowers_the_seven_tenths_norm_that_it_is_for(bits: int) -> None:
    weight = heavy_tailed(64, 64)
    grid = grid_of(bits, False, 16)
    moved = norm(weight, quantize_with_search(weight, grid, "hqq"), 0.7).sum()
    plain = norm(weight, quantize_with_search(weight, grid, "minmax"), 0.7).sum()
    assert moved < plain


def test_hqq_gives_zeros_that_are_fractions() -> None:
    tensor = quantize_with_search(heavy_tailed(16, 64), grid_of(4, False, 16), "hqq")
    assert tensor.zero is not None and (tensor.zero != tensor.zero.round()).any()


def test_hqq_refuses_a_grid_that_has_no_zeros_to_move() -> None:
    with pytest.raises(QuantizationError, match="symmetric grid does not have"):
        quantize_with_search(torch.randn(2, 16), grid_of(4, True, 16), "hqq")


@given(
    search=st.sampled_from(SEARCHES),
    bits=st.integers(1, 8),
    symmetric=st.booleans(),
    lead=st.lists(st.integers(1, 3), max_size=1),
    out=st.integers(1, 4),
    groups=st.integers(1, 3),
    width=st.integers(2, 9),
    by_channel=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**31),
)
def test_any_shape_gives_a_tensor_of_that_shape_with_an_error_below_one_range(
    search: RangeSearch,
    bits: int,
    symmetric: bool,
    lead: list[int],
    out: int,
    groups: int,
    width: int,
    by_channel: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    symmetric = symmetric and search != "hqq"
    grid = grid_of(bits, symmetric, None if by_channel else width)
    weight = torch.randn(*lead, out, groups * width, generator=torch.Generator().manual_seed(seed)).to(dtype)
    tensor = quantize_with_search(weight, grid, search)
    assert tensor.codes.shape == weight.shape
    assert tensor.scale.dtype == dtype
    assert int(tensor.codes.max()) <= grid.code_max
    reach = weight.float().amax() - weight.float().amin()
    assert weight_error(weight, tensor).max_abs <= max(reach, weight.float().abs().max() * 2) * 1.1


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_result_does_not_depend_on_how_many_rows_are_worked_on_at_once(
    search: RangeSearch, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rows of whole numbers bring ties, and a first group that hqq leaves where it is.
    weight = torch.cat([torch.randint(-7, 9, (4, 32)).float(), heavy_tailed(12, 32)]).to(dtype)
    grid = grid_of(4, False, 16)
    whole = quantize_with_search(weight, grid, search)
    for elements in (1, 4 * 3 * 32, 4 * 5 * 32):
        monkeypatch.setattr(rows, "CHUNK_ELEMENTS", elements)
        pieces = quantize_with_search(weight, grid, search)
        assert torch.equal(pieces.codes, whole.codes)
        assert torch.equal(pieces.scale, whole.scale)
        assert pieces.zero is not None and whole.zero is not None and torch.equal(pieces.zero, whole.zero)


@pytest.mark.parametrize("search", SEARCHES)
def test_experts_are_searched_one_by_one(search: RangeSearch) -> None:
    weight = heavy_tailed(3, 4, 32)
    together = quantize_with_search(weight, grid_of(3, False, 16), search)
    for expert in range(3):
        alone = quantize_with_search(weight[expert], grid_of(3, False, 16), search)
        assert torch.equal(together.codes[expert], alone.codes)
        assert torch.equal(together.dequantize()[expert], alone.dequantize())


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused_and_counted(search: RangeSearch, bad: float) -> None:
    weight = torch.randn(4, 32)
    weight[1, 3] = weight[2, 5] = bad
    with pytest.raises(QuantizationError, match="2 values of the weight are NaN or infinite"):
        quantize_with_search(weight, grid_of(4, False, 16), search)


@pytest.mark.parametrize(
    ("search", "symmetric"), [("minmax", True), ("minmax", False), ("mse", True), ("mse", False), ("hqq", False)]
)
def test_a_group_of_zeros_stays_exactly_zero(search: RangeSearch, symmetric: bool) -> None:
    weight = torch.randn(3, 64)
    weight[1, 16:32] = 0
    weight[2] = 0
    tensor = quantize_with_search(weight, grid_of(4, symmetric, 16), search)
    assert (tensor.dequantize()[1, 16:32] == 0).all()
    assert (tensor.dequantize()[2] == 0).all()
    assert (tensor.scale > 0).all()


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_codes_are_right_for_the_rounded_scale_that_is_stored(search: RangeSearch, dtype: torch.dtype) -> None:
    weight = heavy_tailed(16, 64).to(dtype)
    tensor = quantize_with_search(weight, grid_of(8, False, 16), search)
    assert tensor.scale.dtype == dtype and tensor.zero is not None
    steps = tensor.scale.double().repeat_interleave(16, -1)
    position = weight.double() / steps + tensor.zero.double().repeat_interleave(16, -1)
    inside = (position >= 0) & (position <= 255)
    moved = (weight.double() - tensor.dequantize(torch.float64)).abs()
    assert (moved <= steps / 2 * (1 + 1e-4))[inside].all()
    assert inside.double().mean() > 0.5


def test_weights_too_small_for_the_scales_dtype_still_come_within_half_a_step() -> None:
    weight = (torch.randn(2, 32) * 1e-6).half()
    tensor = quantize_with_search(weight, grid_of(4, True, 16), "minmax")
    assert (tensor.scale.float() >= 2.0**-20).all()
    assert weight_error(weight, tensor).max_abs <= float(tensor.scale.max()) / 2


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("bits", [4, 8])
def test_small_weights_are_as_exact_in_float16_as_in_float32(search: RangeSearch, bits: int) -> None:
    for exponent in range(-19, -12):
        weight = (torch.randn(16, 512) * 2.0**exponent * 2**bits / 6).half()  # scales of about 2^exponent
        for symmetric in (True, False) if search != "hqq" else (False,):
            grid = grid_of(bits, symmetric, 128)
            half, whole = (
                weight_error(weight, quantize_with_search(one, grid, search)) for one in (weight, weight.float())
            )
            assert half.sqnr_db is not None and whole.sqnr_db is not None
            assert half.sqnr_db > whole.sqnr_db - 3, exponent


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_of_other_dtypes_are_normal_numbers(dtype: torch.dtype) -> None:
    tensor = quantize_with_search(torch.full((1, 16), 1e-38, dtype=dtype), grid_of(8, True, 16), "minmax")
    assert float(tensor.scale) == torch.finfo(dtype).tiny


def test_a_scale_that_overflows_its_dtype_is_refused_with_a_way_out() -> None:
    weight = torch.full((1, 16), 3e38)
    weight[0, 0] = -3e38
    with pytest.raises(QuantizationError, match=r"does not fit torch\.float32"):
        quantize_with_search(weight, grid_of(4, True, 16), "minmax")
    with pytest.raises(QuantizationError, match=r"does not fit torch.float16.*float32"):
        quantize_with_search(torch.full((1, 16), 65000.0).half(), grid_of(1, True, 16), "minmax")


def test_a_group_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(QuantizationError, match="172 values do not divide into groups of 16"):
        quantize_with_search(torch.randn(2, 172), grid_of(4, True, 16), "mse")


@pytest.mark.parametrize("search", ["minmax", "mse"])
def test_gaussian_weights_keep_the_signal_to_noise_that_their_bits_allow(search: RangeSearch) -> None:
    weight = torch.randn(24, 512)

    def decibels(grid: Grid) -> float:
        found = weight_error(weight, quantize_with_search(weight, grid, search)).sqnr_db
        assert found is not None
        return found

    assert decibels(grid_of(8, True, None)) >= 38
    assert decibels(grid_of(4, True, 128)) >= 18
    assert decibels(grid_of(4, True, 128)) < decibels(grid_of(8, True, None))
    assert decibels(grid_of(2, True, 128)) < decibels(grid_of(3, True, 128)) < decibels(grid_of(4, True, 128))
    assert decibels(grid_of(4, True, 32)) > decibels(grid_of(4, True, None)), "smaller groups fit better"
