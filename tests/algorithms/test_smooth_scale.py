"""The frame of smoothing: what a scale costs, and which is kept."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from goldstick.algorithms import AWQ, Member, SmoothQuant
from goldstick.algorithms import judged_rows as module
from goldstick.algorithms.hessian_factor import uncompensated
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.algorithms.smooth_scale import SmoothLoss, bounded, least_loss
from goldstick.core.edits import Fold
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.core.rounded_inputs import fake_quantize_per_token
from goldstick.errors import QuantizationError
from goldstick.structure.network import Network
from goldstick.structure.probe.fold import apply_fold
from tests.support.input_groups import inputs, members, observed

Smoother = AWQ | SmoothQuant
quick_smoother = pytest.mark.parametrize(
    "smoother", [AWQ(grid=4), SmoothQuant(alpha="search")], ids=["awq", "smoothquant"]
)
every_smoother = pytest.mark.parametrize(
    "smoother", [AWQ(), SmoothQuant(), SmoothQuant(alpha="search")], ids=["awq", "smoothquant", "smoothquant search"]
)


def in_fp8(values: Tensor) -> Tensor:
    """Rounded to E4M3 with one scale."""
    step = values.abs().max() / 448
    return (values / step).to(torch.float8_e4m3fn).float() * step


def simulated(group: list[Member], x: Tensor, scale: Tensor | None) -> float:
    """The mean over tokens of the squared error of all outputs, a token at a time."""
    total = 0.0
    s = torch.ones(x.shape[-1]) if scale is None else scale
    for member in group:
        grid = member.scheme.weight
        weight = quantize_with_search((member.weight.float() * s).to(member.weight.dtype), grid, "minmax").dequantize()
        for token in x:
            given = token / s
            activation = member.scheme.activation
            if activation is not None and activation.integers:
                given = fake_quantize_per_token(given, activation.bits)
            elif activation is not None:
                given = in_fp8(given)
            total += float((weight.double() @ given.double() - member.weight.double() @ token.double()).square().sum())
    return total / len(x)


@pytest.mark.parametrize("scheme", ["w4a16-g16", "w3a16-channel-asym", "w8a8-dynamic", "w4a4-dynamic", "fp8-dynamic"])
@pytest.mark.parametrize("features", [64, 640])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_loss_is_the_simulated_error(scheme: str, features: int, dtype: torch.dtype) -> None:
    x = inputs(128, features)
    group = members(scheme, features, (6, 5), dtype)
    loss = SmoothLoss(group, observed(x))
    for scale in (None, torch.rand(features) + 0.5):
        assert loss(scale) == pytest.approx(simulated(group, x, scale), rel=1e-4)


@pytest.mark.parametrize("scheme", ["w4a16-g16", "w8a8-dynamic", "fp8-dynamic"])
@pytest.mark.parametrize("features", [64, 640])
def test_parts_of_outputs_are_judged_by_tokens_as_they_weight_them(scheme: str, features: int) -> None:
    x = inputs(24, features)
    group, expected, scale = [], {True: 0.0, False: 0.0}, torch.rand(features) + 0.5
    for member in members(scheme, features, (6, 5)):
        parts, sizes = [], [0.25, 8.0]
        for rows, size in zip((slice(0, 2), slice(2, len(member.weight))), sizes, strict=True):
            weights = torch.rand(len(x))
            parts.append((rows, observed(x * weights.sqrt().unsqueeze(1))))
            part = replace(member, weight=member.weight[rows])
            for scaled in expected:
                errors = [simulated([part], token.unsqueeze(0), scale if scaled else None) for token in x]
                expected[scaled] += size * float((weights.double() * torch.tensor(errors).double()).mean())
        state = OutputGroups(parts=parts, plain=observed(x), sizes=sizes)
        group.append(replace(member, weighted=lambda state=state: state))
    loss = SmoothLoss(group, observed(x))
    assert loss.weighted
    assert loss(None) == pytest.approx(expected[False], rel=1e-3)
    assert loss(scale) == pytest.approx(expected[True], rel=1e-3)


def test_where_one_layer_cannot_weight_its_inputs_none_does() -> None:
    x = inputs(100)
    group = members("w4a16-g16", outs=(6, 5))
    parts = [(slice(0, 6), observed(x * torch.rand(100, 1)))]
    state = OutputGroups(parts=parts, plain=observed(x), sizes=[1.0])
    loss = SmoothLoss([replace(group[0], weighted=lambda: state), group[1]], observed(x))
    assert not loss.weighted
    assert loss(None) == SmoothLoss(group, observed(x))(None)


def test_layers_of_different_schemes_are_weighed_in_the_same_unit() -> None:
    x = inputs(100)
    group = [*members("w4a16-g16", outs=(6,)), *members("w8a8-dynamic", outs=(7,))]
    assert SmoothLoss(group, observed(x))(None) == pytest.approx(simulated(group, x, None), rel=1e-4)


def test_few_channels_are_judged_on_every_input_and_many_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    x = inputs(256)
    group = members("w4a16-g16")
    monkeypatch.setattr(module, "SAMPLE", 64)
    every = SmoothLoss(group, observed(x))(None)
    monkeypatch.setattr(module, "SAMPLE", 63)
    sampled = SmoothLoss(group, observed(x))(None)
    assert every == pytest.approx(simulated(group, x, None), rel=1e-4)
    assert sampled == pytest.approx(simulated(group, observed(x).sample(63), None), rel=1e-4)


@pytest.mark.parametrize("features", [64, 640])
def test_of_layers_that_are_compensated_only_what_that_leaves_counts(features: int) -> None:
    x = inputs(1200, features)
    group = [replace(member, compensated=True) for member in members("w4a16-g16", features)]
    left = uncompensated(observed(x).hessian().clone(), group[0].scheme.weight)
    assert left is not None
    for scale in (None, torch.rand(features) + 0.5):
        s = torch.ones(features) if scale is None else scale
        expected = 0.0
        for member in group:
            rounded = quantize_with_search(member.weight * s, member.scheme.weight, "mse").dequantize().double()
            expected += float(((rounded / s.double() - member.weight.double()).square() @ left).sum()) / 2
        assert SmoothLoss(group, observed(x), "clip")(scale) == pytest.approx(expected, rel=1e-9)


def test_inputs_that_allow_no_compensation_are_judged_as_if_there_was_none() -> None:
    x = inputs()
    group = members("w4a16-g16")
    observer = observed(torch.zeros_like(x))
    compensated = [replace(member, compensated=True) for member in group]
    assert SmoothLoss(compensated, observer)(None) == SmoothLoss(group, observed(torch.zeros_like(x)))(None) == 0


def test_a_scale_that_overflows_a_weight_costs_infinity() -> None:
    group = members("w4a16-g16", dtype=torch.float16)
    loss = SmoothLoss(group, observed(inputs()))
    assert loss(torch.full((64,), 1e38)) == math.inf


class Listed(SmoothLoss):
    """Losses by the first element of the scale."""

    def __init__(self, losses: dict[float | None, float]) -> None:
        self.losses = losses

    def __call__(self, scale: Tensor | None) -> float:
        return self.losses[None if scale is None else float(scale[0])]


def test_the_first_of_equals_is_kept_and_the_last_digits_do_not_count() -> None:
    candidates = [({"alpha": value}, torch.tensor([value])) for value in (1.0, 2.0, 3.0)]
    least = least_loss(Listed({None: 9.0, 1.0: 5.0, 2.0: 4.0, 3.0: 4.0 - 1e-12}), candidates)
    assert least.notes == {"alpha": 2.0, "balanced_error": 4.0, "unbalanced_error": 9.0}
    least = least_loss(Listed({None: 9.0, 1.0: 5.0, 2.0: 4.0, 3.0: 4.0 - 1e-6}), candidates)
    assert least.notes["alpha"] == 3.0


def test_no_scale_is_kept_that_does_not_help() -> None:
    candidates = [({"alpha": 1.0}, torch.tensor([1.0]))]
    for loss in (9.0, 9.0 - 1e-12, 10.0, math.inf):
        least = least_loss(Listed({None: 9.0, 1.0: loss}), candidates)
        assert least.scale is None
        assert "no scale lowers the simulated output error 9" in str(least.notes["unbalanced"])
    assert least_loss(Listed({None: 9.0}), []).scale is None


def test_scales_are_bounded() -> None:
    scale = torch.tensor([0.0, 1e-9, 2.0, 1e9, math.inf, math.nan, 3.0], dtype=torch.float64)
    live = torch.tensor([True, True, True, True, True, True, False])
    assert bounded(scale, live).tolist() == pytest.approx([1e-4, 1e-4, 2.0, 1e4, 1.0, 1.0, 1.0])
    assert bounded(scale, live).dtype == torch.float32


@every_smoother
def test_a_group_that_rounds_exactly_is_left_as_it_is(smoother: Smoother) -> None:
    group = members("w4a16-channel-asym")
    for member in group:
        member.weight.random_(0, 16)
        member.weight[:, :2] = torch.tensor([0.0, 15.0])
    found = smoother.smooth_scale(group, observed(inputs()))
    assert found.scale is None
    assert str(found.notes["unbalanced"]).startswith("no scale lowers the simulated output error 0")


@pytest.mark.parametrize("scheme", ["w3a16-g16", "w3a16-channel-asym"])
def test_shrunken_ranges_are_those_of_least_error_weighed_by_the_inputs(scheme: str) -> None:
    """Each group for itself, so that one row of one group says it all."""
    x, scale = inputs(100, 16, (5,)), torch.rand(16) + 0.5
    group = [replace(one, weight=one.weight[:1]) for one in members(scheme, 16, (1,))]
    (weight,) = (group[0].weight[0] * scale).unsqueeze(0)
    grid, square = group[0].scheme.weight, (x / scale).double().square().mean(0)
    low, high = min(float(weight.min()), 0.0), max(float(weight.max()), 0.0)
    if grid.symmetric:
        low, high = -max(-low, high), max(-low, high)
    found = {}
    for ratio in [1 - step / 20 for step in range(10)]:
        step = (high - low) * ratio / grid.code_max
        zero = grid.midpoint if grid.symmetric else round(-low * ratio / step)
        rounded = (((weight / step).round() + zero).clamp(0, grid.code_max) - zero) * step
        error = float((square * (rounded - weight).double().square()).sum())
        delta = (rounded / scale - group[0].weight[0]).double()
        found[error] = float((x.double() @ delta).square().mean())
    assert len(found) > 4
    assert SmoothLoss(group, observed(x), "clip")(scale) == pytest.approx(found[min(found)], rel=1e-4)


@pytest.mark.parametrize("smoother", [AWQ(ranges="minmax"), SmoothQuant()], ids=["awq", "smoothquant"])
def test_a_balance_is_what_it_says(smoother: Smoother) -> None:
    """The errors in the notes are those of a token by token simulation."""
    x = inputs(100)
    group = members("w8a8-dynamic", outs=(6, 3))
    found = smoother.smooth_scale(group, observed(x))
    assert found.scale is not None
    assert found.notes["balanced_error"] == pytest.approx(simulated(group, x, found.scale), rel=1e-4)
    assert found.notes["unbalanced_error"] == pytest.approx(simulated(group, x, None), rel=1e-4)


@quick_smoother
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("scheme", ["w4a16-g16", "w8a8-dynamic"])
def test_degenerate_input_gives_a_usable_scale_or_none(smoother: Smoother, scheme: str, dtype: torch.dtype) -> None:
    x = inputs(256)
    nothing, constant, huge, broken = x.clone(), x.clone(), x.clone(), x.clone()
    nothing[:, ::3] = 0
    constant[:, :] = 4.25
    huge[:, 3] *= 1e25
    broken[2, 2] = math.nan
    empty_columns = members(scheme, dtype=dtype)
    for member in empty_columns:
        member.weight[:, 1::2] = 0
    zeros = [replace(member, weight=torch.zeros_like(member.weight)) for member in empty_columns]
    for group in (members(scheme, dtype=dtype), empty_columns, zeros):
        for given in (x, nothing, constant, huge, broken, torch.zeros(256, 64), torch.zeros(0, 64), x[:1]):
            scale = smoother.smooth_scale(group, observed(given)).scale
            assert scale is None or (scale.dtype == torch.float32 and (scale >= 1e-4).all() and (scale <= 1e4).all())
            dead = given.abs().sum(0) == 0
            assert scale is None or (scale[dead] == 1).all()
    one = members(scheme.replace("g16", "channel"), 1, (2,), dtype)
    scale = smoother.smooth_scale(one, observed(torch.randn(50, 1))).scale
    assert scale is None or torch.isfinite(scale).all()


@every_smoother
def test_inputs_that_are_mostly_not_finite_are_refused(smoother: Smoother) -> None:
    x = inputs()
    x[:20] = math.nan
    with pytest.raises(QuantizationError, match="hold NaN or infinity"):
        smoother.smooth_scale(members("w8a8-dynamic"), observed(x))


@every_smoother
def test_a_weight_that_is_not_finite_is_refused(smoother: Smoother) -> None:
    group = members("w8a8-dynamic")
    group[1].weight[3, 3] = math.nan
    with pytest.raises(QuantizationError, match="NaN or infinite"):
        smoother.smooth_scale(group, observed(inputs()))


@every_smoother
def test_the_scale_can_be_folded_into_the_norm_before_and_leaves_the_output_as_it_was(smoother: Smoother) -> None:
    norm = nn.LayerNorm(64)
    with torch.no_grad():
        norm.weight[[5, 40]] *= 50
        norm.bias.normal_()
    model = nn.Sequential(norm, nn.Linear(64, 32))
    network = Network(model)
    site = network.by_name["1"]
    x = torch.randn(600, 64)
    before = model(x)
    (like,) = members("w8a8-dynamic", outs=(32,))
    group = [replace(like, site=site, weight=network.weight(site))]
    scale = smoother.smooth_scale(group, observed(norm(x).detach())).scale
    assert scale is not None and scale.max() > 2 * scale.min()
    apply_fold(model, Fold(producer="0", consumers=("1",), scale=scale), [site])
    after = model(x)
    assert (after - before).norm() <= 1e-5 * before.norm()


@every_smoother
def test_the_order_of_batches_does_not_change_a_bit_of_the_scale_by_the_weights_alone(smoother: Smoother) -> None:
    """Of at most 512 channels and float activations everything is summed exactly."""
    x = inputs()
    group = members("w4a16-g16")
    first = smoother.smooth_scale(group, observed(x))
    turned = InputObserver(64)
    for batch in reversed(x.split(41)):
        turned.observe(batch)
    second = smoother.smooth_scale(group, turned)
    assert first.notes == second.notes
    assert (first.scale is None) == (second.scale is None)
    if first.scale is not None and second.scale is not None:
        assert torch.equal(first.scale, second.scale)
