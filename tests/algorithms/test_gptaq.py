"""GPTAQ: the drift target against independent slow references, and that the float model's output is met better."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from goldstick.algorithms.gptaq import gptaq_target
from goldstick.algorithms.gptq import GPTQ, solve_gptq
from goldstick.algorithms.hessian_factor import Order, column_order, inverse_factor
from goldstick.algorithms.output_error import output_error
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.cross_covariance import CrossCovarianceObserver
from goldstick.core.edits import Quantize
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor, quantize_on_grid
from goldstick.errors import QuantizationError, RecipeError
from goldstick.structure.network import Network
from tests.support.gptq import correlated, eliminate_slowly, grid_of, hessian_of

every_order = pytest.mark.parametrize("order", ["gar", "activation", "natural"])


def drifted_inputs(tokens: int = 400, features: int = 32) -> tuple[Tensor, Tensor]:
    """Inputs of a float layer, and what they became behind a layer that was rounded; float64."""
    x = correlated(tokens, features)
    return x, x @ (torch.eye(features) + 0.2 * torch.randn(features, features) / features**0.5).double()


def drift_of(x: Tensor, original: Tensor) -> Tensor:
    return 2 * (original - x).T @ x / len(x)


def true_error(weight: Tensor, tensor: QuantizedTensor, x: Tensor, original: Tensor) -> float:
    """‖W x_fp − Ŵ x_q‖², token by token, times 2/n."""
    distance = original @ weight.double().T - x @ tensor.dequantize().double().T
    return float(2 * distance.square().sum() / len(x))


def test_the_error_is_that_against_the_float_model_but_for_what_no_codes_change() -> None:
    original, x = drifted_inputs()
    weight, h, d = torch.randn(8, 32), hessian_of(x), drift_of(x, original)
    constant = float(2 * ((original - x) @ weight.double().T).square().sum() / len(x))
    for bits in (2, 4):
        tensor = quantize_with_search(weight, grid_of(bits), "mse")
        found = output_error(weight, tensor, h, weight.double() @ d)
        assert found + constant == pytest.approx(true_error(weight, tensor, x, original), rel=1e-9)


@every_order
def test_the_target_is_the_float_weight_that_comes_nearest_to_the_float_output(order: Order) -> None:
    original, x = drifted_inputs()
    weight, h = torch.randn(8, 32), hessian_of(x)
    columns = column_order(h.diagonal(), grid_of(), order)
    factor = inverse_factor(h[columns][:, columns], 0.0)
    assert factor is not None
    drifted = weight.double() @ drift_of(x, original)
    expected = torch.linalg.lstsq(x, original @ weight.double().T).solution.T  # knows no H and no D
    torch.testing.assert_close(gptaq_target(weight, drifted, factor, columns, 1.0), expected, rtol=1e-7, atol=1e-9)
    halfway = (expected + weight.double()) / 2
    torch.testing.assert_close(gptaq_target(weight, drifted, factor, columns, 0.5), halfway, rtol=1e-7, atol=1e-9)


@every_order
def test_codes_equal_those_of_a_slow_elimination_of_the_best_float_weight(order: Order) -> None:
    original, x = drifted_inputs()
    weight, h, grid, alpha = torch.randn(4, 32), hessian_of(x), grid_of(3, False), 0.5
    shift = 0.01 * h.diagonal().mean()
    damped = h + shift * torch.eye(32, dtype=torch.float64)
    target = weight.double() + alpha * torch.linalg.solve(damped, (weight.double() @ drift_of(x, original)).T).T
    ranges = quantize_with_search(weight, grid, "minmax")
    expected = eliminate_slowly(target, damped, column_order(h.diagonal(), grid, order).tolist(), ranges)
    found = solve_gptq(weight, h, grid, order=order, search="minmax", drift=drift_of(x, original), alpha=alpha)
    assert found.fallback is None
    assert torch.equal(found.tensor.codes, expected)
    assert torch.equal(found.tensor.scale, ranges.scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_no_drift_and_no_alpha_give_the_codes_of_plain_gptq(dtype: torch.dtype) -> None:
    original, x = drifted_inputs()
    weight, h, grid = torch.randn(8, 32).to(dtype), hessian_of(x), grid_of(3)
    before = weight.clone()
    plain = solve_gptq(weight, h, grid)
    none = solve_gptq(weight, h, grid, drift=torch.zeros_like(h))
    assert torch.equal(none.tensor.codes, plain.tensor.codes)
    assert none.loss == pytest.approx(plain.loss)  # summed in two ways
    assert none.rtn_loss == pytest.approx(plain.rtn_loss, rel=1e-5)  # and here in float64
    idle = solve_gptq(weight, h, grid, drift=drift_of(x, original), alpha=0.0)
    assert torch.equal(idle.tensor.codes, plain.tensor.codes)
    assert torch.equal(weight, before)


def test_it_comes_nearer_to_the_float_output_than_plain_gptq_and_farther_from_the_layers_own() -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        original, x = drifted_inputs()
        weight, h, grid = torch.randn(16, 32), hessian_of(x), grid_of(3)
        plain = solve_gptq(weight, h, grid).tensor
        solution = solve_gptq(weight, h, grid, drift=drift_of(x, original), alpha=1.0)
        assert true_error(weight, solution.tensor, x, original) < 0.9 * true_error(weight, plain, x, original)
        assert output_error(weight, solution.tensor, h) > output_error(weight, plain, h)
        assert solution.loss is not None and solution.rtn_loss is not None
        assert solution.loss <= solution.rtn_loss
        rounded = quantize_with_search(weight, grid, "mse")
        assert true_error(weight, solution.tensor, x, original) <= true_error(weight, rounded, x, original)


def test_a_dead_input_keeps_the_codes_of_rounding() -> None:
    original, x = drifted_inputs()
    x[:, [5, 20]] = 0  # the float model still feeds them
    weight, grid = torch.randn(8, 32), grid_of(3)
    solution = solve_gptq(weight, hessian_of(x), grid, drift=drift_of(x, original))
    rounded = quantize_on_grid(weight, solution.tensor.scale, solution.tensor.zero, grid)  # in the ranges it has
    assert solution.dead == 2
    assert torch.equal(solution.tensor.codes[:, [5, 20]], rounded.codes[:, [5, 20]])


def test_a_drift_that_cannot_be_used_is_said_to_be() -> None:
    original, x = drifted_inputs()
    weight, h, d = torch.randn(8, 32), hessian_of(x), drift_of(x, original)
    with pytest.raises(QuantizationError, match="needs a drift alike"):
        solve_gptq(weight, h, grid_of(), drift=d[:16])
    d[1, 2] = torch.nan
    solution = solve_gptq(weight, h, grid_of(), drift=d)
    assert solution.fallback == "1 values of the drift are NaN or infinite"
    with pytest.raises(RecipeError, match="alpha"):
        GPTQ(alpha=1.5)


def test_the_algorithm_uses_the_drift_it_was_shown_and_says_where_there_is_none() -> None:
    network = Network(torch.nn.Sequential(torch.nn.Linear(32, 16)))
    site = network.by_name["0"]
    original, x = (side.float() for side in drifted_inputs())
    observer = CrossCovarianceObserver(32)
    observer.observe(x, original=original)
    weight = network.weight(site)

    def solved(algorithm: GPTQ, state: object) -> Quantize:
        (edit,) = algorithm.solve(site, weight, state, algorithm.scheme_for(site))  # type: ignore[arg-type]
        assert isinstance(edit, Quantize)
        return edit

    algorithm = GPTQ(scheme="w3a16-g16", gptaq=True, alpha=0.75)
    grid: Grid = algorithm.scheme_for(site).weight
    expected = solve_gptq(weight, observer.hessian(), grid, drift=observer.cross_covariance(), alpha=0.75)
    edit = solved(algorithm, observer)
    assert torch.equal(edit.tensor.codes, expected.tensor.codes)
    assert edit.notes["output_error"] == expected.loss
    assert "symmetric" not in edit.notes
    plain = solve_gptq(weight, observer.hessian(), grid).tensor.codes
    assert torch.equal(solved(GPTQ(scheme="w3a16-g16"), observer).tensor.codes, plain)
    alone = algorithm.attach(site)
    alone.observe(x)  # type: ignore[union-attr]
    edit = solved(algorithm, alone)
    assert torch.equal(edit.tensor.codes, plain)
    assert "cannot be paired" in str(edit.notes["symmetric"])
