"""Coordinate descent: against a slow one that tries every code, and what it promises of the error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from goldstick.algorithms.coordinate_descent import (
    damped_hessian,
    descend,
    descend_codes,
    fit_scales,
    sweep_factors,
)
from goldstick.algorithms.gptq import GPTQ, solve_gptq
from goldstick.algorithms.output_error import output_error, row_errors
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.grid import FLOAT8_SCALES, POWERS_OF_TWO, Grid
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError
from tests.support.gptq import correlated, descended_slowly, hessian_of

GRIDS = ["w4a16-g16", "w2a16-g32", "w3a16-channel", "w3a16-g16-asym", "nvfp4a16", "mxfp4a16", "nf4a16"]
every_grid = pytest.mark.parametrize("name", GRIDS)


def problem(name: str, columns: int = 64) -> tuple[Tensor, Tensor, Grid]:
    """A weight, a damped Hessian, a grid."""
    h = hessian_of(correlated(300, columns))
    return torch.randn(6, columns), damped_hessian(h, 0.01 * float(h.diagonal().mean())), Scheme.parse(name).weight


@pytest.mark.parametrize("name", ["w3a16-g16", "w2a16-channel-asym", "nvfp4a16", "mxfp4a16"])
def test_a_cycle_gives_the_codes_of_a_slow_descent_that_tries_them_all(name: str) -> None:
    weight, hessian, grid = problem(name, 32)
    start = quantize_with_search(weight, grid, "minmax")
    columns = torch.randperm(32)
    found = descend_codes(weight, start, *sweep_factors(hessian, columns), columns)
    slow = replace(start, codes=descended_slowly(weight, start, hessian, columns.tolist()))
    assert torch.equal(found.dequantize(), slow.dequantize())  # a zero has two codes among floats
    assert not torch.equal(found.codes, start.codes)


def test_columns_beyond_one_block_of_the_loop_make_no_difference() -> None:
    weight, hessian, grid = problem("w2a16-g32", 160)
    start, columns = quantize_with_search(weight, grid, "minmax"), torch.arange(160)
    found = descend_codes(weight[:2], start.rows(slice(0, 2)), *sweep_factors(hessian, columns), columns)
    assert torch.equal(found.codes, descended_slowly(weight[:2], start.rows(slice(0, 2)), hessian, list(range(160))))


@every_grid
def test_no_row_gets_a_larger_error_in_any_cycle(name: str) -> None:
    weight, hessian, grid = problem(name)
    tensor = quantize_with_search(weight, grid, "minmax")
    errors = [row_errors(weight, tensor, hessian)]
    for _ in range(4):
        tensor = descend(weight, tensor, hessian, torch.arange(64), 1)
        errors.append(row_errors(weight, tensor, hessian))
        assert (errors[-1] <= errors[-2]).all()
    assert errors[-1].sum() < 0.8 * errors[0].sum()


@every_grid
def test_a_target_of_float64_is_left_as_it_was_and_gives_the_same(name: str) -> None:
    weight, hessian, grid = problem(name)
    start, target = quantize_with_search(weight, grid, "minmax"), weight.double()
    found = descend(target, start, hessian, torch.arange(64), 3)
    assert torch.equal(target, weight.double())
    expected = descend(weight, start, hessian, torch.arange(64), 3)
    assert torch.equal(found.codes, expected.codes) and torch.equal(found.scale, expected.scale)


@every_grid
def test_scales_alone_lower_the_error_and_stay_storable(name: str) -> None:
    weight, hessian, grid = problem(name)
    start = quantize_with_search(weight, grid, "minmax")
    start = replace(start, scale=start.scale / 2)
    fitted = fit_scales(weight, start, hessian)
    assert output_error(weight, fitted, hessian) < output_error(weight, start, hessian)
    assert torch.equal(fitted.codes, start.codes) and (fitted.scale > 0).all()
    if grid.scale == POWERS_OF_TWO:
        assert (torch.frexp(fitted.scale).mantissa == 0.5).all()
    if grid.scale == FLOAT8_SCALES:
        assert torch.equal(fitted.scale, fitted.scale.to(torch.float8_e4m3fn).to(fitted.scale.dtype))


def test_the_scale_of_one_group_is_that_of_least_squares() -> None:
    weight, hessian, grid = problem("w3a16-channel")
    start = quantize_with_search(weight, grid, "minmax")
    values = start.codes.double() - grid.midpoint
    expected = ((weight.double() @ hessian) * values).sum(-1) / ((values @ hessian) * values).sum(-1)
    assert torch.allclose(fit_scales(weight, start, hessian).scale.squeeze(-1).double(), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scales_of_16_bits_are_judged_as_they_are_stored(dtype: torch.dtype) -> None:
    weight, hessian, grid = problem("w4a16-g16")
    weight = weight.to(dtype)
    start = quantize_with_search(weight, grid, "minmax")
    found = descend(weight, start, hessian, torch.arange(64), 3)
    assert found.scale.dtype == dtype
    assert (row_errors(weight, found, hessian) <= row_errors(weight, start, hessian)).all()


@pytest.mark.parametrize("gptaq", [False, True])
def test_gptq_with_cycles_leaves_less_error_than_without(gptaq: bool) -> None:
    weight, h = torch.randn(24, 64), hessian_of(correlated(400, 64))
    drift = 0.05 * h if gptaq else None
    grid = Scheme.parse("w2a16-g32").weight
    errors = [solve_gptq(weight, h, grid, drift=drift, cycles=cycles).loss for cycles in (0, 2)]
    assert errors[0] is not None and errors[1] is not None and errors[1] < errors[0]


def test_inputs_that_are_always_zero_keep_the_codes_of_rounding() -> None:
    x = correlated(300, 64)
    x[:, 5] = 0
    weight, grid = torch.randn(4, 64), Scheme.parse("w4a16-channel").weight
    h = hessian_of(x)
    solution = solve_gptq(weight, h, grid, cycles=3)
    code = torch.clamp(torch.round(weight[:, 5] / solution.tensor.scale[:, 0]) + 8, 0, 15)
    assert torch.equal(solution.tensor.codes[:, 5].float(), code)


def test_a_negative_number_of_cycles_is_refused() -> None:
    with pytest.raises(RecipeError, match="cycles is 0 or more"):
        GPTQ(cycles=-1)
