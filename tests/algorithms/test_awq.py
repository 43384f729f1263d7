"""AWQ: its scales and its clipping by loops, what they gain, and inputs that should break them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from goldstick.algorithms import AWQ, GPTQ, Member, awq, clipping
from goldstick.algorithms.awq import awq_scale, solve_awq, weight_importance
from goldstick.algorithms.clipping import best_rows, clipped
from goldstick.algorithms.output_error import output_error, row_errors
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.algorithms.smooth_scale import SmoothLoss
from goldstick.core.edits import Quantize
from goldstick.core.grid import Grid
from goldstick.core.inputs import InputObserver
from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import QuantizationError, RecipeError
from tests.support.input_groups import experts_site, inputs, members, observed

with_and_without_duo = pytest.mark.parametrize("duo", [False, True], ids=["plain", "duo"])
either_symmetry = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])


def grid_of(bits: int = 4, symmetric: bool = True, size: int | None = 16) -> Grid:
    return Grid(bits=bits, symmetric=symmetric, granularity="group" if size else "channel", group_size=size)


def slow_scale(x: Tensor, group: list[Member], ratio: float, duo: bool) -> list[float]:
    """The formula of the paper and of its implementation, a channel at a time."""
    scale = []
    for channel in range(x.shape[1]):
        value = (sum(abs(float(row[channel])) for row in x) / len(x)) ** ratio
        shares = []
        for member in group:
            width = member.scheme.weight.group_width(x.shape[1])
            start = channel // width * width
            for row in member.weight:
                largest = max(abs(float(w)) for w in row[start : start + width])
                shares.append(abs(float(row[channel])) / largest)
        if duo:
            value /= (sum(shares) / len(shares)) ** (1 - ratio) + 1e-4
        scale.append(max(value, 1e-4))
    middle = math.sqrt(max(scale) * min(scale))
    return [value / middle for value in scale]


@with_and_without_duo
@pytest.mark.parametrize("ratio", [0.0, 0.35, 1.0])
def test_the_scale_is_that_of_the_paper(duo: bool, ratio: float) -> None:
    x = inputs(50, 32, (5,))
    group = [*members("w4a16-g16", 32, (5, 3)), *members("w4a16-channel", 32, (4,))]
    found = awq_scale(observed(x).mean_abs(), weight_importance(group), ratio, duo=duo)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(slow_scale(x, group, ratio, duo), rel=1e-4)


@with_and_without_duo
def test_dead_channels_keep_their_size_and_do_not_count(duo: bool) -> None:
    activation = torch.tensor([1.0, 0.0, 4.0, 16.0, 9.0], dtype=torch.float64)
    weight = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.0], dtype=torch.float64)
    expected = [0.25, 1.0, 1.0, 4.0, 1.0]
    assert awq_scale(activation, weight, 1.0, duo=duo).tolist() == pytest.approx(expected)
    assert awq_scale(torch.zeros(3).double(), torch.ones(3).double(), 0.5, duo=duo).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("duo_scaling", [False, True, "both"])
def test_the_search_keeps_the_best_of_all_ratios(duo_scaling: Any) -> None:
    x = inputs()
    group = members("w3a16-g16")
    found = AWQ(duo_scaling=duo_scaling, grid=5, ranges="minmax").smooth_scale(group, observed(x))
    loss = SmoothLoss(group, observed(x))
    tried = {}
    for step in range(6):
        for duo in {False: (False,), True: (True,), "both": (False, True)}[duo_scaling]:
            scale = awq_scale(observed(x).mean_abs(), weight_importance(group), step / 5, duo=duo)
            tried[step / 5, "yes" if duo else "no"] = loss(scale)
    assert found.scale is not None
    assert (found.notes["ratio"], found.notes["duo_scaling"]) == min(tried, key=lambda key: tried[key])
    assert found.notes["balanced_error"] == pytest.approx(min(tried.values()))
    assert min(tried.values()) < loss(None)


def slowly_clipped(weight: Tensor, x: Tensor, grid: Grid) -> Tensor:
    """What the codes stand for, with the range of least squared error on x for every row and group, in loops."""
    width = grid.group_width(weight.shape[1])
    found = torch.empty_like(weight)
    for row in range(len(weight)):
        for start in range(0, weight.shape[1], width):
            part, given = weight[row, start : start + width], x[:, start : start + width].double()
            least = math.inf
            for step in range(10):
                ratio = 1 - step / 20
                low, high = min(float(part.min()), 0.0), max(float(part.max()), 0.0)
                if grid.symmetric:
                    low, high = -max(-low, high), max(-low, high)
                scale = torch.tensor((high * ratio - low * ratio) / grid.code_max).float()
                zero = grid.midpoint if grid.symmetric else round(-low * ratio / float(scale))
                codes = ((part / scale).round() + zero).clamp(0, grid.code_max)
                rounded = (codes - zero) * scale
                error = float((given @ (rounded - part).double()).square().sum())
                if error < least * (1 - 1e-6):
                    least = error
                    found[row, start : start + width] = rounded
    return found


@either_symmetry
@pytest.mark.parametrize("size", [16, None], ids=["group", "channel"])
@pytest.mark.parametrize("widest", [8, 512], ids=["by rows", "by the Hessian"])
def test_the_clip_search_is_that_of_loops(
    symmetric: bool, size: int | None, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipping, "_WIDEST_BLOCK", widest)
    x, weight, grid = inputs(80), torch.randn(6, 64), grid_of(3, symmetric, size)
    found = clipped(weight, observed(x).hessian(), x, grid).dequantize()
    assert (found - slowly_clipped(weight, x, grid)).abs().max() <= 1e-5


def test_every_row_is_that_of_its_best_rival() -> None:
    weight, hessian = torch.randn(12, 64), observed(inputs()).hessian()
    rivals = [quantize_with_search(weight, grid_of(3, False), search) for search in ("minmax", "mse", "hqq")]  # type: ignore[arg-type]
    tensor, chosen = best_rows(weight, rivals, hessian)
    assert len(set(chosen.tolist())) > 1
    for row in range(12):
        delta = [weight[row].double() - rival.dequantize()[row].double() for rival in rivals]
        losses = [float(one @ hessian @ one) for one in delta]
        best = losses.index(min(losses))
        assert int(chosen[row]) == best
        for part in ("codes", "scale", "zero"):
            assert torch.equal(getattr(tensor, part)[row], getattr(rivals[best], part)[row])
        assert float(row_errors(weight, tensor, hessian)[row]) == pytest.approx(losses[best], rel=1e-9)
    assert best_rows(weight, [rivals[0], rivals[0]], hessian)[1].tolist() == [0] * 12, "the first of equals"


@either_symmetry
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("clip", [True, False])
def test_no_output_is_worse_than_rounding_to_nearest(bits: int, symmetric: bool, clip: bool) -> None:
    x, weight, grid = inputs(), torch.randn(16, 64), grid_of(bits, symmetric)
    hessian = observed(x).hessian()
    solution = solve_awq(weight, hessian, observed(x).sample(512), grid, clip=clip)
    plain = [quantize_with_search(weight, grid, search) for search in ("minmax", "mse")]  # type: ignore[arg-type]
    for rival in plain:
        assert (row_errors(weight, solution.tensor, hessian) <= row_errors(weight, rival, hessian)).all()
    assert solution.loss == pytest.approx(output_error(weight, solution.tensor, hessian))
    assert solution.rtn_loss == pytest.approx(min(output_error(weight, rival, hessian) for rival in plain))
    assert solution.damping is None


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("scheme", ["w4a16-g16", "w3a16-g16", "w3a16-channel", "w4a16-g16-asym"])
def test_it_beats_rounding_to_nearest_at_the_output_and_loses_at_the_weights(scheme: str, clip: bool) -> None:
    x = inputs()
    group = members(scheme)
    algorithm = AWQ(clip=clip, ranges="clip" if clip else "minmax")
    scale = algorithm.smooth_scale(group, observed(x)).scale
    assert clip or scale is not None
    scale = torch.ones(64) if scale is None else scale
    outputs, weights = [0.0, 0.0, 0.0], [0.0, 0.0]  # rounding to nearest, AWQ, AWQ without its scale
    for member in group:
        weight, exact = member.weight, x.double() @ member.weight.double().T
        plain = quantize_with_search(weight, member.scheme.weight, "minmax")
        (scaled,) = algorithm.solve(member.site, weight * scale, observed(x / scale), member.scheme)
        (unscaled,) = algorithm.solve(member.site, weight, observed(x), member.scheme)
        assert isinstance(scaled, Quantize) and isinstance(unscaled, Quantize)
        tensors = (plain.dequantize(), scaled.tensor.dequantize() / scale, unscaled.tensor.dequantize())
        for place, restored in enumerate(tensors):
            outputs[place] += float((x.double() @ restored.double().T - exact).square().sum())
        for place, restored in enumerate(tensors[:2]):
            weights[place] += float((restored - weight).square().sum())
    assert outputs[1] < (0.5 if clip else 0.8) * outputs[0]
    assert outputs[1] < outputs[2] or torch.equal(scale, torch.ones(64)), "a scale serves the rounding that follows"
    assert weights[1] > weights[0]


def test_large_activations_have_their_weights_scaled_up() -> None:
    scale = AWQ(ranges="minmax").smooth_scale(members("w4a16-g16"), observed(inputs())).scale
    assert scale is not None
    assert scale[[5, 40]].min() > scale.median()


def test_gptq_rounds_the_scaled_weights_better_still() -> None:
    x = inputs()
    (member,) = members("w3a16-g16", outs=(48,))
    scale = AWQ(quantize=False, ranges="minmax").smooth_scale([member], observed(x)).scale
    assert scale is not None
    scaled, given = member.weight * scale, observed(x / scale)
    errors = {}
    for stage in (AWQ(), GPTQ()):
        (edit,) = stage.solve(member.site, scaled, given, member.scheme)
        assert isinstance(edit, Quantize)
        errors[stage.name] = edit.notes["output_error"]
    assert float(errors["gptq"]) < float(errors["awq"])


def test_the_decision_has_notes() -> None:
    x = inputs()
    (member,) = members("w4a16-g16", outs=(16,))
    algorithm = AWQ()
    observer = algorithm.attach(member.site)
    assert isinstance(observer, InputObserver)
    observer.observe(x)
    (edit,) = algorithm.solve(member.site, member.weight, observer, member.scheme)
    assert isinstance(edit, Quantize)
    expected = solve_awq(member.weight, observer.hessian(), observer.sample(512), member.scheme.weight)
    assert torch.equal(edit.tensor.codes, expected.tensor.codes)
    assert (edit.site, edit.scheme, edit.algorithm) == (member.site.name, member.scheme, "awq")
    assert edit.notes == {
        "tokens": 600,
        "dropped_tokens": 0,
        "dead_inputs": 0,
        "output_error": expected.loss,
        "rtn_output_error": expected.rtn_loss,
    }


def test_too_few_inputs_are_not_trusted() -> None:
    (member,) = members("w4a16-g16", outs=(16,))
    rounded = quantize_with_search(member.weight, member.scheme.weight, "mse")
    for tokens, reason in ((31, "31 inputs seen, fewer than 0.5 of 64"), (0, "no input ever reached the layers")):
        observer = observed(inputs(tokens))
        assert AWQ().smooth_scale([member], observer).notes == {"unbalanced": reason}
        (edit,) = AWQ().solve(member.site, member.weight, observer, member.scheme)
        assert isinstance(edit, Quantize)
        assert edit.notes["fallback"] == reason
        assert torch.equal(edit.tensor.codes, rounded.codes)
    assert AWQ(token_floor=0.25, ranges="minmax").smooth_scale([member], observed(inputs(31))).scale is not None


def test_each_expert_is_solved_on_its_own_inputs() -> None:
    site = experts_site()
    algorithm = AWQ(scheme="w3a16-g16")
    observers = algorithm.attach(site)
    assert isinstance(observers, list)
    for expert, observer in enumerate(observers):
        observer.observe(inputs(300 if expert != 1 else 3))
    weight = torch.randn(3, 8, 64)
    (edit,) = algorithm.solve(site, weight, observers, algorithm.scheme_for(site))
    assert isinstance(edit, Quantize)
    for expert in (0, 2):
        seen = observers[expert]
        expected = solve_awq(weight[expert], seen.hessian(), seen.sample(512), edit.scheme.weight)
        assert torch.equal(edit.tensor.codes[expert], expected.tensor.codes)
    assert str(edit.notes["fallback"]).startswith("1 of 3 matrices: 3 inputs seen")
    with pytest.raises(QuantizationError, match="3 matrices need a Hessian each, not 2"):
        algorithm.solve(site, weight, observers[:2], edit.scheme)


@pytest.mark.parametrize("scheme", ["w4a16-g16", "w2a16-channel-asym"])
def test_degenerate_layers_are_rounded_without_a_stumble(scheme: str) -> None:
    (member,) = members(scheme, outs=(4,))
    zeros = replace(member, weight=torch.zeros(4, 64))
    broken = inputs()
    broken[3, 3] = math.nan
    for given in (torch.zeros(100, 64), torch.ones(100, 64), broken, inputs(outliers=range(64), factor=0)):
        for one in (member, zeros):
            (edit,) = AWQ().solve(one.site, one.weight, observed(given), one.scheme)
            assert isinstance(edit, Quantize)
            assert torch.isfinite(edit.tensor.dequantize()).all()
            assert all(isinstance(note, str) or math.isfinite(note) for note in edit.notes.values())
    (edit,) = AWQ().solve(member.site, member.weight, observed(torch.zeros(100, 64)), member.scheme)
    assert isinstance(edit, Quantize)
    assert "no input ever reached" in str(edit.notes["fallback"])
    weight = torch.randn(3, 1)
    tensor = solve_awq(weight, torch.eye(1).double(), torch.ones(5, 1), grid_of(4, size=None)).tensor
    assert isinstance(tensor, QuantizedTensor) and torch.isfinite(tensor.dequantize()).all()


def test_weights_that_clipping_does_not_serve_say_so() -> None:
    weight = torch.randint(0, 16, (6, 64)).float()
    weight[:, ::16], weight[:, 1::16] = 0, 15
    solution = solve_awq(weight, observed(inputs()).hessian(), inputs(), grid_of(4, False))
    assert solution.fallback == "clipping lowers the error of no output"
    assert solution.loss == 0


def test_without_rounding_it_only_balances() -> None:
    assert AWQ().quantizes
    assert not AWQ(quantize=False).quantizes
    for wrong in ({"scheme": "w3a16-g32"}, {"overrides": {"*": "w8a16"}}):
        with pytest.raises(RecipeError, match="give scheme and overrides to the stage that rounds"):
            AWQ(quantize=False, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("option", "complaint"), [({"grid": 0}, "grid"), ({"token_floor": -1.0}, "token_floor")])
def test_options_that_mean_nothing_are_refused(option: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        AWQ(**option)


def test_importances_do_not_depend_on_how_many_rows_are_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    group = members("w4a16-g16")
    expected = weight_importance(group)
    monkeypatch.setattr(awq, "row_chunks", lambda matrix, copies: [slice(i, i + 5) for i in range(0, len(matrix), 5)])
    assert torch.equal(weight_importance(group[::-1]), expected)
