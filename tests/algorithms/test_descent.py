"""Descent from rounding to nearest: what it promises of the error, and where rounding stays."""

from __future__ import annotations

import pytest
import torch

from goldstick.algorithms.coordinate_descent import damped_hessian, descend
from goldstick.algorithms.descent import Descent, solve_descent
from goldstick.algorithms.hessian_factor import column_order
from goldstick.algorithms.output_error import output_error, row_errors
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.edits import Quantize
from goldstick.core.grid import FLOAT8_SCALES, POWERS_OF_TWO, Grid
from goldstick.core.inputs import InputObserver
from goldstick.core.scheme import Scheme
from goldstick.errors import QuantizationError, RecipeError
from goldstick.structure.network import Network
from tests.support.gptq import correlated, descended_slowly, hessian_of, pathologies

every_grid = pytest.mark.parametrize(
    "name", ["nvfp4a16", "mxfp4a16", "fp8a16", "fp8-block", "mxfp8a16", "nf4a16", "w4a16-g32", "w3a16-g32-asym"]
)


def grid_of(name: str) -> Grid:
    return Scheme.parse(name).weight


@every_grid
def test_no_cycle_raises_the_error_of_an_output_and_all_fall_below_rounding(name: str) -> None:
    weight, h = torch.randn(12, 128), hessian_of(correlated(400, 128))
    damped = damped_hessian(h, 0.01 * float(h.diagonal().mean()))
    rounded = [quantize_with_search(weight, grid_of(name), search) for search in ("mse", "minmax")]
    errors = [row_errors(weight, min(rounded, key=lambda one: output_error(weight, one, h)), damped)]
    for cycles in (1, 2, 3, 5, 8):
        solution = solve_descent(weight, h, grid_of(name), cycles=cycles)
        errors.append(row_errors(weight, solution.tensor, damped))
        assert (errors[-1] <= errors[-2]).all()
        assert solution.fallback is None and solution.loss is not None and solution.rtn_loss is not None
        assert solution.loss < solution.rtn_loss
    assert errors[-1].sum() < 0.8 * errors[0].sum()


def test_one_cycle_gives_the_codes_of_a_slow_descent_from_rounding() -> None:
    weight, h = torch.randn(5, 32), hessian_of(correlated(300, 32))
    damped = damped_hessian(h, 0.01 * float(h.diagonal().mean()))
    grid = Scheme.parse("w3a16-channel").weight
    start = quantize_with_search(weight, grid, "minmax")
    order = column_order(h.diagonal(), grid, "gar").tolist()
    slow = descended_slowly(weight, start, damped, order)
    found = descend(weight, start, damped, torch.tensor(order), 1, scales=False)
    assert torch.equal(found.codes, slow)


@pytest.mark.parametrize("name", ["nvfp4a16", "mxfp4a16"])
def test_scales_move_and_can_be_stored(name: str) -> None:
    weight, h, grid = torch.randn(16, 128), hessian_of(correlated(400, 128)), grid_of(name)
    found, start = solve_descent(weight, h, grid).tensor, quantize_with_search(weight, grid, "mse")
    if grid.scale == POWERS_OF_TWO:
        assert (torch.frexp(found.scale).mantissa == 0.5).all()
    else:
        assert grid.scale == FLOAT8_SCALES and found.global_scale is not None and start.global_scale is not None
        assert torch.equal(found.scale, found.scale.to(torch.float8_e4m3fn).to(found.scale.dtype))
        assert not torch.equal(found.scale, start.scale)
        assert torch.equal(found.global_scale, start.global_scale)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_it_makes_up_for_drift_and_no_drift_changes_nothing(alpha: float) -> None:
    weight, grid, x = torch.randn(12, 64), grid_of("nvfp4a16"), correlated(400, 64)
    h, rounded = hessian_of(x), (x * 4).round() / 4
    drift = 2 * (x - rounded).T @ rounded / len(x)
    without = solve_descent(weight, hessian_of(rounded), grid)
    found = solve_descent(weight, hessian_of(rounded), grid, drift=drift, alpha=alpha)
    errors = [(weight.double() @ x.T - one.tensor.dequantize().double() @ rounded.T).norm() for one in (found, without)]
    assert errors[0] < errors[1]
    same = solve_descent(weight, h, grid, drift=torch.zeros(64, 64, dtype=torch.float64), alpha=alpha)
    plain = solve_descent(weight, h, grid)
    assert torch.equal(same.tensor.codes, plain.tensor.codes) and torch.equal(same.tensor.scale, plain.tensor.scale)


@pytest.mark.parametrize("drifts", [False, True])
def test_the_result_is_the_same_with_any_number_of_threads(drifts: bool) -> None:
    weight, h, grid = torch.randn(64, 256), hessian_of(correlated(600, 256)), grid_of("nvfp4a16")
    drift = 0.05 * h if drifts else None
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(solve_descent(weight, h, grid, cycles=3, drift=drift).tensor)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0].codes, found[1].codes) and torch.equal(found[0].scale, found[1].scale)


def test_inputs_that_do_not_correlate_leave_rounding_with_plain_scales_as_it_is() -> None:
    weight, grid, h = torch.randn(8, 64), grid_of("w4a16-g32"), torch.eye(64, dtype=torch.float64)
    rounded = quantize_with_search(weight, grid, "minmax")
    found = descend(weight, rounded, h, torch.arange(64), 3, scales=False)
    assert torch.equal(found.codes, rounded.codes)


@pytest.mark.parametrize("name", pathologies())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_hessian_breaks_it(name: str, dtype: torch.dtype) -> None:
    h, reason = pathologies()[name]
    weight, grid = torch.randn(8, 32).to(dtype), grid_of("nvfp4a16")
    solution = solve_descent(weight, h, grid)
    assert torch.isfinite(solution.tensor.dequantize()).all()
    assert solution.tensor.scale.dtype == dtype
    if reason is None:
        assert solution.loss is not None and solution.rtn_loss is not None
        assert solution.loss <= solution.rtn_loss
    else:
        assert solution.fallback is not None and reason in solution.fallback
        assert torch.equal(solution.tensor.codes, quantize_with_search(weight, grid, "mse").codes)


def test_a_singular_hessian_is_no_fault() -> None:
    weight, grid = torch.randn(6, 64), grid_of("mxfp4a16")
    solution = solve_descent(weight, hessian_of(correlated(8, 64)), grid)
    assert solution.fallback is None and (solution.loss or 0) < (solution.rtn_loss or 0)


def test_a_hessian_of_other_inputs_is_refused() -> None:
    with pytest.raises(QuantizationError, match="needs a Hessian"):
        solve_descent(torch.randn(6, 64), torch.eye(32), grid_of("mxfp4a16"))
    with pytest.raises(QuantizationError, match="needs a drift alike"):
        solve_descent(torch.randn(6, 64), torch.eye(64), grid_of("mxfp4a16"), drift=torch.eye(32))


def test_few_inputs_leave_rounding() -> None:
    network = Network(torch.nn.Sequential(torch.nn.Linear(64, 6)))
    weight, observer = torch.randn(6, 64), InputObserver(64)
    observer.observe(torch.randn(5, 64))
    (edit,) = Descent(scheme="nvfp4a16").solve(network.by_name["0"], weight, observer, Scheme.parse("nvfp4a16"))
    assert isinstance(edit, Quantize)
    assert edit.notes["fallback"] == "5 inputs seen, fewer than 0.5 of 64"


@pytest.mark.parametrize("search", ["ggml", "ggml-imatrix"])
def test_blocks_of_ggml_keep_their_scales(search: str) -> None:
    weight, h, grid = torch.randn(8, 256), hessian_of(correlated(600, 256)), grid_of("q4_k")
    solution = solve_descent(weight, h, grid, search=search)  # type: ignore[arg-type]
    assert solution.fallback is None and (solution.loss or 0) < (solution.rtn_loss or 0)
    starts = [quantize_with_search(weight, grid, "ggml")]
    starts.append(quantize_with_search(weight, grid, "ggml-imatrix", h.diagonal()))
    assert any(torch.equal(solution.tensor.scale, start.scale) for start in starts)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("cycles", 0, "cycles is 1 or more"),
        ("damping", 0.0, "damping is a fraction"),
        ("alpha", 1.5, "alpha is how much"),
        ("token_floor", -1.0, "token_floor"),
        ("experts", "some", "routed or all"),
        ("order", "random", "order is gar"),
    ],
)
def test_options_out_of_range_are_refused(option: str, value: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Descent(**{option: value})  # type: ignore[arg-type]
