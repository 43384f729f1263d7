"""Output errors in float32: they lie within their slack of the exact ones, whatever the size of the numbers."""

from __future__ import annotations

import math

import pytest
import torch

from goldstick.algorithms.hessian_factor import inverse_factor
from goldstick.algorithms.output_error import estimated_error, least_error, least_undamped, output_error
from goldstick.algorithms.ranges import quantize_with_search
from tests.support.gptq import correlated, grid_of, hessian_of


@pytest.mark.parametrize("size", [1.0, 1e-30, 1e25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_estimate_is_off_by_no_more_than_it_says(dtype: torch.dtype, size: float) -> None:
    torch.manual_seed(0)
    weight, hessian = torch.randn(40, 1100).to(dtype) * size, hessian_of(correlated(700, 1100)) * 1e60
    tensor = quantize_with_search(weight, grid_of(4, True, None), "minmax")
    exact, found = output_error(weight, tensor, hessian), estimated_error(weight, tensor, hessian)
    assert abs(found.error - exact) <= found.slack < 0.2 * exact
    assert found.error == pytest.approx(exact, rel=1e-5)
    assert found.above(exact - 1.1 * found.slack - abs(exact - found.error)) and not found.above(exact)


def test_what_cannot_be_estimated_is_above_nothing() -> None:
    weight = torch.randn(4, 32)
    tensor = quantize_with_search(weight, grid_of(4, True, None), "minmax")
    assert not estimated_error(weight, tensor, torch.zeros(32, 32, dtype=torch.float64)).above(-1)
    assert not estimated_error(weight, tensor, torch.full((32, 32), math.inf, dtype=torch.float64)).above(0)


def test_the_least_of_several_is_found_from_the_factor_as_from_the_hessian() -> None:
    torch.manual_seed(0)
    x = correlated(300, 64)
    x[:, 5:9] = 0
    weight, hessian = torch.randn(20, 64), hessian_of(x)
    rivals = {name: quantize_with_search(weight, grid_of(3, True, 16), name) for name in ("mse", "minmax")}
    columns, dead = torch.randperm(64), hessian.diagonal() == 0
    factor = inverse_factor(hessian, 0.1, columns)
    assert factor is not None
    name, tensor, error = least_undamped(weight, rivals, factor, columns, 0.1, dead)
    expected = least_error(weight, rivals, hessian)
    assert (name, tensor) == expected[:2] and error == pytest.approx(expected[2], rel=1e-9)
