"""The importance-weighted search: a slow one to compare with, what it is good for, and how RTN and GPTQ use it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import goldstick
from goldstick.algorithms import GPTQ, RTN, DataRequirement
from goldstick.algorithms.gptq import solve_gptq
from goldstick.algorithms.output_error import output_error
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.edits import Quantize
from goldstick.core.grid import Grid
from goldstick.core.inputs import InputObserver
from goldstick.errors import QuantizationError, RecipeError
from goldstick.structure.network import Network, Site
from tests.support.input_groups import experts_site

either_symmetry = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
few_bits = pytest.mark.parametrize("bits", [2, 3, 4])


def grid_of(bits: int, symmetric: bool = True, size: int | None = 16) -> Grid:
    return Grid(bits=bits, symmetric=symmetric, granularity="group" if size else "channel", group_size=size)


def weighted_error(values: Tensor, importance: Tensor, bits: int, scale: float, zero: float) -> float:
    """Σ importance · |ŵ − w|^2.5 of one group, in float64."""
    codes = (values / scale + zero).round().clamp(0, 2**bits - 1)
    return float((importance * (values - (codes - zero) * scale).abs() ** 2.5).sum())


@few_bits
@either_symmetry
def test_no_shrunken_range_has_less_weighted_error(bits: int, symmetric: bool) -> None:
    weight, importance = torch.randn(4, 48), torch.rand(48).square() * 1e6
    tensor = quantize_with_search(weight, grid_of(bits, symmetric), "imatrix", importance)
    for row, group in itertools.product(range(4), range(3)):
        part = slice(16 * group, 16 * group + 16)
        values, counts = weight[row, part].double(), importance[part].double()
        low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
        if symmetric:
            low, high = -max(-low, high), max(-low, high)
        middle = 2.0 ** (bits - 1)
        candidates = []
        for step in range(80):
            scale = (high - low) * (1 - step / 100) / (2**bits - 1)
            zero = middle if symmetric else min(max(round(-low * (1 - step / 100) / scale), 0), 2**bits - 1)
            candidates.append(weighted_error(values, counts, bits, scale, zero))
        chosen_zero = middle if tensor.zero is None else float(tensor.zero[row, group])
        found = weighted_error(values, counts, bits, float(tensor.scale[row, group]), chosen_zero)
        assert found == pytest.approx(min(candidates), rel=1e-4)


def test_columns_alike_and_columns_without_inputs_give_mse() -> None:
    weight, grid = torch.randn(8, 64), grid_of(3, False)
    plain = quantize_with_search(weight, grid, "mse")
    for importance in (torch.full((64,), 7e-9), torch.zeros(64), torch.arange(4).repeat_interleave(16).float()):
        tensor = quantize_with_search(weight, grid, "imatrix", importance)
        assert torch.equal(tensor.codes, plain.codes)
        assert torch.equal(tensor.scale, plain.scale)


def test_a_column_that_never_matters_does_not_widen_the_range() -> None:
    weight = torch.randn(6, 32)
    weight[:, 3] = 40
    importance = torch.ones(32)
    importance[3] = 0
    grid = grid_of(4, size=None)
    searched = quantize_with_search(weight, grid, "imatrix", importance)
    plain = quantize_with_search(weight, grid, "mse")
    assert (searched.scale < plain.scale).all()


@few_bits
@either_symmetry
def test_it_lowers_the_error_of_the_output(bits: int, symmetric: bool) -> None:
    weight = torch.randn(64, 128)
    x = (
        torch.randn(1000, 128, dtype=torch.float64)
        * torch.logspace(-1, 1, 128, dtype=torch.float64)[torch.randperm(128)]
    )
    hessian, grid = 2 * x.T @ x / len(x), grid_of(bits, symmetric, 32)
    searched = quantize_with_search(weight, grid, "imatrix", hessian.diagonal())
    plain = quantize_with_search(weight, grid, "mse")
    assert output_error(weight, searched, hessian) < 0.95 * output_error(weight, plain, hessian)


def test_each_expert_has_importances_of_its_own() -> None:
    weight, importance, grid = torch.randn(3, 8, 64), torch.rand(3, 64).square(), grid_of(3)
    together = quantize_with_search(weight, grid, "imatrix", importance)
    for expert in range(3):
        alone = quantize_with_search(weight[expert], grid, "imatrix", importance[expert])
        assert torch.equal(together.codes[expert], alone.codes)
        assert torch.equal(together.scale[expert], alone.scale)
    shared = quantize_with_search(weight, grid, "imatrix", importance[1])
    assert torch.equal(shared.codes[1], together.codes[1])


@pytest.mark.parametrize(
    ("importance", "complaint"),
    [
        (None, "imatrix needs an importance"),
        (torch.ones(63), r"of shape \(64,\), not \(63,\)"),
        (torch.ones(8, 64), r"of shape \(64,\), not \(8, 64\)"),
        (torch.full((64,), -1.0), "64 importances are negative"),
        (torch.tensor([math.nan, math.inf] + [0.0] * 62), "2 importances are negative, NaN or infinite"),
    ],
)
def test_an_importance_that_does_not_fit_is_refused(importance: Tensor | None, complaint: str) -> None:
    with pytest.raises(QuantizationError, match=complaint):
        quantize_with_search(torch.randn(8, 64), grid_of(4), "imatrix", importance)


def test_searches_that_use_no_importance_refuse_one() -> None:
    with pytest.raises(QuantizationError, match="The search mse takes no importance"):
        quantize_with_search(torch.randn(8, 64), grid_of(4), "mse", torch.ones(64))


def linear() -> tuple[Network, Site]:
    network = Network(torch.nn.Sequential(torch.nn.Linear(64, 16)))
    return network, network.by_name["0"]


def test_rtn_looks_at_data_only_for_this_search() -> None:
    _, site = linear()
    assert RTN(range_search="imatrix").data_requirement is DataRequirement.BLOCKWISE
    assert isinstance(RTN(range_search="imatrix").attach(site), InputObserver)
    assert RTN(range_search="mse").data_requirement is DataRequirement.NONE
    assert RTN(range_search="mse").attach(site) is None


def test_rtn_weights_by_the_mean_square_of_the_inputs_it_saw() -> None:
    network, site = linear()
    weight, x = network.weight(site), torch.randint(-9, 10, (100, 64)).float()
    algorithm = RTN(scheme="w3a16-g16", range_search="imatrix")
    observer = algorithm.attach(site)
    assert isinstance(observer, InputObserver)
    observer.observe(x)
    (edit,) = algorithm.solve(site, weight, observer, algorithm.scheme_for(site))
    assert isinstance(edit, Quantize)
    expected = quantize_with_search(weight, edit.scheme.weight, "imatrix", x.double().square().mean(0))
    assert torch.equal(edit.tensor.codes, expected.codes)
    assert torch.equal(edit.tensor.scale, expected.scale)
    assert edit.notes == {"tokens": 100, "dropped_tokens": 0}
    with pytest.raises(QuantizationError, match="needs the statistics"):
        algorithm.solve(site, weight, None, edit.scheme)


def test_an_expert_without_inputs_is_searched_by_mse_and_said_to_be() -> None:
    site = experts_site()
    algorithm = RTN(scheme="w3a16-g16", range_search="imatrix")
    observers, weight = algorithm.attach(site), torch.randn(3, 8, 64)
    assert isinstance(observers, list)
    for expert in (0, 2):
        observers[expert].observe(torch.randn(20, 64) * torch.logspace(-1, 1, 64))
    (edit,) = algorithm.solve(site, weight, observers, algorithm.scheme_for(site))
    assert isinstance(edit, Quantize)
    assert edit.notes["tokens"] == 0
    assert edit.notes["fallback"] == "1 of 3 matrices: no inputs seen, all columns count alike"
    plain = quantize_with_search(weight, edit.scheme.weight, "mse")
    same = [torch.equal(edit.tensor.scale[expert], plain.scale[expert]) for expert in range(3)]
    assert same == [False, True, False]
    with pytest.raises(QuantizationError, match="3 matrices need a Hessian each, not 2"):
        algorithm.solve(site, weight, observers[:2], edit.scheme)


def test_gptq_takes_the_diagonal_of_its_hessian() -> None:
    weight, grid = torch.randn(16, 64), grid_of(3)
    x = torch.randn(400, 64, dtype=torch.float64) * torch.logspace(-1, 1, 64, dtype=torch.float64)
    hessian = x.T @ x
    solution = solve_gptq(weight, hessian, grid, search="imatrix")
    expected = quantize_with_search(weight, grid, "imatrix", hessian.diagonal())
    assert solution.fallback is None
    assert torch.equal(solution.tensor.scale, expected.scale)
    broken = hessian.clone()
    broken[0, 0] = math.nan
    plain = quantize_with_search(weight, grid, "mse")
    assert torch.equal(solve_gptq(weight, broken, grid, search="imatrix").tensor.codes, plain.codes)
    network, site = linear()
    algorithm = GPTQ(scheme="w3a16-g16", range_search="imatrix")
    (edit,) = algorithm.solve(site, network.weight(site), InputObserver(64), algorithm.scheme_for(site))
    assert isinstance(edit, Quantize)
    unseen = quantize_with_search(network.weight(site), grid, "mse")
    assert torch.equal(edit.tensor.codes, unseen.codes)


def test_a_recipe_runs_it_on_data_and_refuses_to_without() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    recipe = {"stages": [{"rtn": {"scheme": "w3a16-channel", "range_search": "imatrix"}}]}
    with pytest.raises(RecipeError, match="looks at data"):
        goldstick.apply(model, recipe)
    x = torch.randn(50, 32) * torch.logspace(-1, 1, 32)
    result = goldstick.apply(model, recipe, data=[{"input": x}])
    first = quantize_with_search(model[0].weight, grid_of(3, size=None), "imatrix", x.double().square().mean(0))
    expected = torch.nn.functional.linear(x, first.dequantize(), model[0].bias)
    torch.testing.assert_close(result.model[0](x), expected, rtol=0, atol=1e-4 * float(expected.detach().abs().max()))
    assert result.report.layers[0].notes == {"tokens": 50, "dropped_tokens": 0}
