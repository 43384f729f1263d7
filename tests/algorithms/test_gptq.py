"""GPTQ: an independent slow elimination, what it means, and inputs that should break it."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from goldstick.algorithms import column_loop
from goldstick.algorithms.gptq import GPTQ, solve_gptq
from goldstick.algorithms.hessian_factor import (
    Order,
    column_order,
    damping_ladder,
    inverse_factor,
    uncompensated,
)
from goldstick.algorithms.output_error import least_error, output_error
from goldstick.algorithms.ranges import RangeSearch, quantize_with_search
from goldstick.algorithms.solution import Solution, never_worse
from goldstick.core.edits import Quantize
from goldstick.core.error import weight_error
from goldstick.core.grid import Grid
from goldstick.core.inputs import InputObserver
from goldstick.core.qtensor import quantize_on_grid
from goldstick.errors import QuantizationError, RecipeError
from goldstick.structure.network import Network, Site
from tests.support.gptq import correlated, eliminate_slowly, grid_of, hessian_of, pathologies
from tests.support.input_groups import experts_site

every_width = pytest.mark.parametrize("bits", [2, 3, 4, 8])
either_symmetry = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
by_group_or_channel = pytest.mark.parametrize("size", [16, None], ids=["group", "channel"])
every_order = pytest.mark.parametrize("order", ["gar", "activation", "natural"])


@every_width
@either_symmetry
@by_group_or_channel
def test_codes_equal_those_of_a_slow_elimination(bits: int, symmetric: bool, size: int | None) -> None:
    weight, h, grid = torch.randn(4, 32), hessian_of(correlated(200, 32)), grid_of(bits, symmetric, size)
    damped = h + 0.01 * h.diagonal().mean() * torch.eye(32, dtype=torch.float64)
    ranges = quantize_with_search(weight, grid, "minmax")
    orders: list[Order] = ["natural", "gar"]
    for order in orders:
        columns = column_order(h.diagonal(), grid, order)
        factor = inverse_factor(h[columns][:, columns], 0.01 * float(h.diagonal().mean()))
        assert factor is not None
        found = column_loop.solve_columns(weight, factor, columns, ranges).codes
        assert torch.equal(found, eliminate_slowly(weight, damped, columns.tolist(), ranges))
        solution = solve_gptq(weight, h, grid, order=order, search="minmax")
        assert solution.fallback or torch.equal(solution.tensor.codes, found)


@pytest.mark.parametrize("dead", [0, 5])
@either_symmetry
def test_the_error_summed_on_the_way_is_that_of_the_output(symmetric: bool, dead: int) -> None:
    x = correlated(400, 96)
    x[:, :dead] = 0
    weight, h = torch.randn(40, 96), hessian_of(x)
    solution = solve_gptq(weight, h, grid_of(3, symmetric, 32))
    assert solution.fallback is None and solution.dead == dead
    assert solution.loss == pytest.approx(output_error(weight, solution.tensor, h), rel=1e-9)


@pytest.mark.parametrize("columns", [130, 300])
def test_blocks_of_columns_do_not_show(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, h = torch.randn(4, columns), hessian_of(correlated(400, columns))
    found = {}
    for block in (7, 128, columns):
        monkeypatch.setattr(column_loop, "_BLOCK", block)
        found[block] = solve_gptq(weight, h, grid_of(3, True, None)).tensor.codes
    assert all(torch.equal(codes, found[7]) for codes in found.values())


def test_the_factor_is_that_of_the_inverse() -> None:
    h = hessian_of(correlated())
    factor = inverse_factor(h, 0.5)
    assert factor is not None
    assert torch.equal(factor, factor.triu())
    expected = torch.linalg.cholesky(torch.linalg.inv(h + 0.5 * torch.eye(64, dtype=torch.float64)), upper=True)
    torch.testing.assert_close(factor, expected, rtol=1e-9, atol=1e-12)


def test_what_compensation_leaves_is_what_later_inputs_do_not_predict() -> None:
    h, grid = hessian_of(correlated()), grid_of(4, True, 16)
    h[:, 7] = h[7] = 0
    order = column_order(h.diagonal(), grid, "gar").tolist()
    damped = h + 0.01 * h.diagonal()[h.diagonal() > 0].mean() * torch.eye(64, dtype=torch.float64)
    expected = torch.zeros(64, dtype=torch.float64)
    for place, column in enumerate(order):
        later = [other for other in order[place + 1 :] if other != 7]
        if column != 7:
            predicted = torch.linalg.solve(damped[later][:, later], damped[later, column])
            expected[column] = damped[column, column] - damped[column, later] @ predicted
    found = uncompensated(h.clone(), grid)
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


def test_what_compensation_leaves_foretells_the_error_of_gptq() -> None:
    weight, h, grid = torch.randn(200, 64), hessian_of(correlated()), grid_of(6, True, None)
    left = uncompensated(h.clone(), grid)
    assert left is not None
    damped = h + 0.01 * h.diagonal().mean() * torch.eye(64, dtype=torch.float64)
    rounded = quantize_with_search(weight, grid, "minmax").dequantize() - weight.double()
    solved = solve_gptq(weight, h, grid, search="minmax").tensor.dequantize() - weight.double()
    found = float((solved @ damped * solved).sum())
    assert found == pytest.approx(float((rounded.square() @ left).sum()), rel=0.1)
    assert float((rounded @ damped * rounded).sum()) > 2 * found


@pytest.mark.parametrize("useless", [torch.zeros(8, 8), -torch.ones(8, 8) * 1e9])
def test_a_hessian_without_a_factor_says_nothing_of_compensation(useless: torch.Tensor) -> None:
    assert uncompensated(useless.double(), grid_of(4, True, None)) is None


@pytest.mark.parametrize("size", [64, 256, 300, 600])
@pytest.mark.parametrize("reason", [None, "not positive definite", "overflow"])
def test_the_factor_takes_the_place_of_the_hessian_or_leaves_it_as_it_was(size: int, reason: str | None) -> None:
    h = hessian_of(correlated(2 * size, size))
    if reason == "not positive definite":
        h[size // 3, size // 3] *= -1
    elif reason == "overflow":
        h = torch.eye(size, dtype=torch.float64) * 1e-308
        h[0, 1:] = h[1:, 0] = 1e-309
        h[size - 1, size - 1] = 1e-320
    columns = torch.randperm(size)
    place = h.clone()
    factor, expected = inverse_factor(place, 0.0, columns, overwrite=True), inverse_factor(h, 0.0, columns)
    if reason is None:
        assert factor is not None and expected is not None
        assert factor.data_ptr() == place.data_ptr()
        assert torch.equal(factor, expected)
    else:
        assert factor is None and expected is None
        assert torch.equal(place, h)


def test_the_answer_is_the_same_where_the_hessian_is_overwritten() -> None:
    weight, h, grid = torch.randn(32, 64), hessian_of(correlated()), grid_of(3, True)
    expected, place = solve_gptq(weight, h, grid), h.clone()
    solution = solve_gptq(weight, place, grid, overwrite=True)
    assert torch.equal(solution.tensor.codes, expected.tensor.codes)
    assert replace(solution, tensor=expected.tensor) == expected
    assert not torch.equal(place, h)


@every_width
@either_symmetry
@every_order
def test_it_loses_on_the_weight_and_wins_at_the_output(bits: int, symmetric: bool, order: Order) -> None:
    weight, h, grid = torch.randn(32, 64), hessian_of(correlated()), grid_of(bits, symmetric)
    solution = solve_gptq(weight, h, grid, order=order, search="minmax")
    rounded = quantize_with_search(weight, grid, "minmax")
    assert solution.fallback is None
    assert weight_error(weight, solution.tensor).noise > weight_error(weight, rounded).noise
    assert solution.loss is not None
    assert solution.loss < 0.8 * output_error(weight, rounded, h)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@either_symmetry
@by_group_or_channel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_inputs_that_do_not_correlate_give_rounding_to_nearest(
    bits: int, symmetric: bool, size: int | None, dtype: torch.dtype
) -> None:
    weight, grid = torch.randn(16, 64).to(dtype), grid_of(bits, symmetric, size)
    rounded = quantize_with_search(weight, grid, "minmax")
    orders: list[Order] = ["gar", "activation", "natural"]
    h = torch.rand(64, dtype=torch.float64).diag()
    for order in orders:
        columns = column_order(h.diagonal(), grid, order)
        factor = inverse_factor(h[columns][:, columns], 0.01)
        assert factor is not None
        assert torch.equal(column_loop.solve_columns(weight, factor, columns, rounded).codes, rounded.codes)
    solution = solve_gptq(weight, torch.eye(64, dtype=torch.float64), grid, search="minmax")
    assert solution.fallback is None
    assert torch.equal(solution.tensor.codes, rounded.codes)


def test_group_aware_order_is_the_natural_one_where_all_inputs_are_alike() -> None:
    h = hessian_of(correlated())
    size = h.diagonal().sqrt()
    h = h / torch.outer(size, size)
    h.fill_diagonal_(1)
    weight, grid = torch.randn(8, 64), grid_of()
    assert column_order(h.diagonal(), grid, "gar").tolist() == list(range(64))
    orders: list[Order] = ["gar", "natural", "activation"]
    found = [solve_gptq(weight, h, grid, order=order).tensor.codes for order in orders]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_group_aware_order_sorts_inside_groups_and_keeps_groups_together() -> None:
    diagonal = torch.tensor([1.0, 3, 2, 2, 9, 0, 4, 8])
    assert column_order(diagonal, grid_of(size=4), "gar").tolist() == [4, 7, 6, 5, 1, 2, 3, 0]
    assert column_order(diagonal, grid_of(size=4), "activation").tolist() == [4, 7, 6, 1, 2, 3, 0, 5]
    assert column_order(diagonal, grid_of(size=None), "gar").tolist() == [4, 7, 6, 1, 2, 3, 0, 5]


@pytest.mark.parametrize("order", ["gar", "activation"])
def test_shuffled_inputs_give_shuffled_codes(order: Order) -> None:
    weight, h, grid = torch.randn(8, 64), hessian_of(correlated()), grid_of(3, False, None)
    shuffle = torch.randperm(64)
    found = solve_gptq(weight, h, grid, order=order).tensor
    moved = solve_gptq(weight[:, shuffle], h[shuffle][:, shuffle], grid, order=order).tensor
    assert torch.equal(moved.codes, found.codes[:, shuffle])


def test_rows_do_not_meet() -> None:
    weight, h, grid = torch.randn(40, 64), hessian_of(correlated()), grid_of(3)
    found = solve_gptq(weight, h, grid).tensor.codes
    assert torch.equal(solve_gptq(weight[17:19], h, grid).tensor.codes, found[17:19])
    assert torch.equal(solve_gptq(weight.flip(0), h, grid).tensor.codes, found.flip(0))


@either_symmetry
@pytest.mark.parametrize("search", ["minmax", "mse"])
def test_it_is_never_worse_than_rounding_to_nearest(symmetric: bool, search: RangeSearch) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        weight = torch.distributions.StudentT(torch.tensor(2.0)).sample(torch.Size((2, 32)))
        x = correlated(int(torch.randint(2, 60, ())), 32)
        h, grid = hessian_of(x), grid_of(int(torch.randint(1, 5, ())), symmetric, 8)
        solution = solve_gptq(weight, h, grid, search=search)
        assert solution.loss is not None
        assert solution.loss == pytest.approx(output_error(weight, solution.tensor, h), rel=1e-9, abs=1e-9)
        rivals: list[RangeSearch] = ["minmax", search]
        for rival in rivals:
            rounded = output_error(weight, quantize_with_search(weight, grid, rival), h)
            assert solution.loss <= rounded
            assert solution.rtn_loss is not None and solution.rtn_loss <= rounded * (1 + 1e-5)  # known in float32
        exact = float((x @ (weight.double() - solution.tensor.dequantize().double()).T).square().sum()) * 2 / len(x)
        assert solution.loss == pytest.approx(exact, rel=1e-9, abs=1e-12)


def test_a_worse_answer_is_not_kept_and_said_to_be() -> None:
    weight, h, grid = torch.randn(4, 16), hessian_of(correlated(64, 16)), grid_of(4, True, None)
    rounded = quantize_with_search(weight, grid, "mse")
    worse = replace(rounded, codes=rounded.codes.flip(0))
    rival = least_error(weight, {"mse": rounded}, h)
    solution = never_worse(worse, output_error(weight, worse, h), rival)
    assert solution.tensor is rounded
    assert solution.loss == solution.rtn_loss == output_error(weight, rounded, h)
    assert solution.fallback is not None
    assert re.match(r"its output error \S+ is not below the \S+ of rounding with mse ranges", solution.fallback)
    assert never_worse(rounded, rival[2], least_error(weight, {"mse": worse}, h)).fallback is None


@pytest.mark.parametrize("name", pathologies())
@either_symmetry
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_hessian_breaks_it(name: str, symmetric: bool, dtype: torch.dtype) -> None:
    h, reason = pathologies()[name]
    before = h.clone()
    weight = torch.randn(8, 32).to(dtype)
    solution = solve_gptq(weight, h, grid_of(4, symmetric, 8))
    assert torch.equal(h.nan_to_num(), before.nan_to_num())
    assert torch.isfinite(solution.tensor.dequantize()).all()
    assert solution.tensor.scale.dtype == dtype
    if reason is None:
        assert solution.fallback is None
        assert solution.damping == 0.01
        assert solution.loss is not None and solution.rtn_loss is not None
        assert solution.loss <= solution.rtn_loss
    else:
        assert solution.fallback is not None and reason in solution.fallback
        assert solution.damping == 0


def test_a_dead_input_keeps_the_codes_of_rounding_and_touches_no_other() -> None:
    weight, grid = torch.randn(8, 32), grid_of(3, False, 8)
    x = correlated(256, 32)
    x[:, [5, 20]] = 0
    h = hessian_of(x)
    solution = solve_gptq(weight, h, grid)
    rounded = quantize_on_grid(weight, solution.tensor.scale, solution.tensor.zero, grid)  # in the ranges it has
    assert solution.dead == 2
    assert torch.equal(solution.tensor.codes[:, [5, 20]], rounded.codes[:, [5, 20]])
    h[5, 5] = h[20, 20] = 1e-9 * h.diagonal().max()
    order = column_order(h.diagonal(), grid, "gar")
    live = float(h.diagonal()[h.diagonal() > 1e-3].mean())
    factor = inverse_factor(h[order][:, order], 0.01 * live)
    assert factor is not None
    assert torch.equal(column_loop.solve_columns(weight, factor, order, rounded).codes, solution.tensor.codes)


def test_the_ladder_is_climbed_until_the_factorization_succeeds() -> None:
    h = hessian_of(correlated(256, 32))
    h -= 0.05 * h.diagonal().mean() * torch.eye(32, dtype=torch.float64)
    assert torch.linalg.eigvalsh(h).min() < 0
    solution = solve_gptq(torch.randn(8, 32), h, grid_of(4, True, 8))
    assert solution.damping == 0.1
    assert damping_ladder(0.01) == (0.01, 0.1, 1.0)
    assert damping_ladder(0.05) == (0.05, 0.5, 1.0)
    assert damping_ladder(1.0) == (1.0,)


def test_a_weight_that_is_not_finite_is_an_error() -> None:
    weight = torch.randn(4, 16)
    weight[1, 2] = math.nan
    with pytest.raises(QuantizationError, match="NaN"):
        solve_gptq(weight, torch.eye(16, dtype=torch.float64), grid_of())
    with pytest.raises(QuantizationError, match=r"\[in, in\]"):
        solve_gptq(torch.randn(4, 16), torch.eye(15, dtype=torch.float64), grid_of())


@either_symmetry
def test_fractional_zeros_are_kept(symmetric: bool) -> None:
    weight, h = torch.randn(8, 64), hessian_of(correlated())
    if symmetric:
        with pytest.raises(QuantizationError, match="hqq"):
            solve_gptq(weight, h, grid_of(), search="hqq")
        return
    solution = solve_gptq(weight, h, grid_of(3, False), search="hqq")
    expected = quantize_with_search(weight, grid_of(3, False), "hqq")
    assert solution.fallback is None
    assert solution.tensor.zero is not None and expected.zero is not None
    kept = (solution.tensor.zero == expected.zero).all(-1)
    plain = quantize_with_search(weight, grid_of(3, False), "minmax").zero
    assert plain is not None and bool((kept | (solution.tensor.zero == plain).all(-1)).all())
    assert int(kept.sum()) > len(weight) // 2 and bool((solution.tensor.zero[kept] % 1 != 0).any())


def linear(features: int = 64) -> tuple[Network, Site]:
    network = Network(torch.nn.Sequential(torch.nn.Linear(features, 16)))
    return network, network.by_name["0"]


def test_the_algorithm_decides_one_edit_with_notes() -> None:
    network, site = linear()
    algorithm = GPTQ(scheme="w4a16-g16")
    observer = algorithm.attach(site)
    assert isinstance(observer, InputObserver)
    x = correlated().float()
    observer.observe(x)
    weight = network.weight(site)
    scheme = algorithm.scheme_for(site)
    (edit,) = algorithm.solve(site, weight, observer, scheme)
    assert isinstance(edit, Quantize)
    assert (edit.site, edit.scheme, edit.algorithm) == ("0", scheme, "gptq")
    expected: Solution = solve_gptq(weight, observer.hessian(), scheme.weight)
    assert torch.equal(edit.tensor.codes, expected.tensor.codes)
    assert edit.notes == {
        "damping": 0.01,
        "tokens": 512,
        "dropped_tokens": 0,
        "dead_inputs": 0,
        "output_error": expected.loss,
        "rtn_output_error": expected.rtn_loss,
        "effective_rank": round(expected.rank or 0.0, 1),
        "tokens_needed": math.ceil(10 * round(expected.rank or 0.0, 1)),
        **({"short_of_tokens": 1} if 10 * (expected.rank or 0.0) > 512 else {}),
    }


def test_the_effective_rank_counts_the_directions_that_outweigh_the_damping() -> None:
    torch.manual_seed(5)
    directions = torch.linalg.qr(torch.randn(64, 64, dtype=torch.float64))[0][:, :7]
    x = torch.randn(512, 7, dtype=torch.float64) @ directions.T
    hessian = 2 / 512 * x.T @ x
    weight = torch.randn(8, 64)
    for order in ("gar", "natural"):
        found = solve_gptq(
            weight, hessian, Grid(bits=4, granularity="group", group_size=16), order=order, ladder=(1e-6,)
        ).rank
        assert found == pytest.approx(7, abs=1e-3)
    hessian[3], hessian[:, 3] = 0.0, 0.0  # an input that is always zero counts for nothing
    shift = 0.01 * float(hessian.diagonal()[hessian.diagonal() > 0].mean())
    eigenvalues = torch.linalg.eigvalsh(hessian)
    expected = float((eigenvalues / (eigenvalues + shift)).sum())
    assert solve_gptq(weight, hessian, Grid(bits=4, granularity="group", group_size=16)).rank == pytest.approx(
        expected, rel=1e-9
    )


def test_too_few_inputs_are_not_trusted() -> None:
    network, site = linear()
    weight = network.weight(site)
    x = correlated(31).float()
    for floor, reason in ((0.5, "31 inputs seen, fewer than 0.5 of 64"), (0.25, None)):
        algorithm = GPTQ(scheme="w4a16-g16", token_floor=floor)
        observer = algorithm.attach(site)
        assert isinstance(observer, InputObserver)
        observer.observe(x)
        (edit,) = algorithm.solve(site, weight, observer, algorithm.scheme_for(site))
        assert isinstance(edit, Quantize)
        assert edit.notes.get("fallback") == reason
        rounded = quantize_with_search(weight, edit.scheme.weight, "mse")
        assert torch.equal(edit.tensor.codes, rounded.codes) == (reason is not None)


@either_symmetry
def test_each_expert_has_a_hessian_of_its_own(symmetric: bool) -> None:
    site = experts_site()
    algorithm = GPTQ(scheme="w4a16-g16" if symmetric else "w4a16-g16-asym")
    observers = algorithm.attach(site)
    assert isinstance(observers, list)
    for expert, observer in enumerate(observers):
        observer.observe(correlated(512 if expert != 1 else 3).float())
    weight = torch.randn(3, 8, 64)
    (edit,) = algorithm.solve(site, weight, observers, algorithm.scheme_for(site))
    assert isinstance(edit, Quantize)
    assert edit.tensor.codes.shape == weight.shape
    for expert in (0, 2):
        expected = solve_gptq(weight[expert], observers[expert].hessian(), edit.scheme.weight)
        assert torch.equal(edit.tensor.codes[expert], expected.tensor.codes)
    assert edit.notes["tokens"] == 3
    assert str(edit.notes["fallback"]).startswith("1 of 3 matrices: 3 inputs seen")
    with pytest.raises(QuantizationError, match="3 matrices need a Hessian each, not 2"):
        algorithm.solve(site, weight, observers[:2], edit.scheme)


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ({"damping": 0.0}, "damping"),
        ({"damping": math.nan}, "damping"),
        ({"token_floor": -1.0}, "token_floor"),
        ({"order": "sideways"}, "gar, activation or natural"),
    ],
)
def test_options_that_mean_nothing_are_refused(option: dict[str, float], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        GPTQ(**option)  # type: ignore[arg-type]
