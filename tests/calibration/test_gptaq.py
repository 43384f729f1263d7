"""The float model beside the sweep: an exact statistic of pairs, the same in both ways through a block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.calibration import block as block_module
from goldstick.calibration.sweep import sweep
from goldstick.core.cross_covariance import CrossCovarianceObserver
from goldstick.core.inputs import InputObserver
from goldstick.core.progress import quiet
from goldstick.errors import QuantizationError
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.resolve import resolve
from goldstick.recipes.run import calibrated_work
from goldstick.structure.network import Network
from tests.support.calibration import batches_for, uneven
from tests.support.tiny_models import FAMILIES, output_tensor

pytestmark = pytest.mark.usefixtures("reference_backend")

PLAIN = {"gptq": {"scheme": "w2a16-g32"}}
ASYMMETRIC = {"gptq": {"scheme": "w2a16-g32", "gptaq": True}}


def pair(tokens: int = 300, features: int = 24) -> tuple[Tensor, Tensor]:
    x = torch.randn(tokens, features) @ torch.randn(features, features)
    x[:, ::8] *= 50
    return x, x + 0.1 * torch.randn(tokens, features) * x.abs().amax(0)


def slow_drift(x: Tensor, original: Tensor) -> Tensor:
    total = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for mine, theirs in zip(x.double(), original.double(), strict=True):
        total += torch.outer(theirs - mine, mine)
    return 2 * total / len(x)


def observed(x: Tensor, original: Tensor, *, parts: int = 1, ranges_first: bool = False) -> CrossCovarianceObserver:
    observer = CrossCovarianceObserver(x.shape[-1])
    batches = list(zip(x.chunk(parts), original.chunk(parts), strict=True))
    if ranges_first:
        for mine, theirs in batches:
            observer.observe_range(mine, original=theirs)
    for mine, theirs in batches:
        observer.observe(mine, original=theirs)
    return observer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_equals_a_sum_of_outer_products_but_for_the_rounding(dtype: torch.dtype) -> None:
    x, original = (side.to(dtype) for side in pair())
    found, expected = observed(x, original).cross_covariance(), slow_drift(x, original)
    deviation = (original.double() - x.double()).square().mean(0).sqrt()
    size = 2 * torch.outer(deviation, x.double().square().mean(0).sqrt())
    assert ((found - expected).abs() / size).max() <= 1e-4
    whole = torch.randint(-500, 501, (2, 64, 20)).float()
    assert torch.equal(observed(whole[0], whole[1]).cross_covariance(), slow_drift(whole[0], whole[1]))


def test_no_order_batching_or_look_changes_a_bit() -> None:
    x, original = pair()
    expected = observed(x, original).cross_covariance()
    plain = InputObserver(24)
    plain.observe(x)
    assert torch.equal(observed(x, original).hessian(), plain.hessian())
    shuffle = torch.randperm(len(x))
    assert torch.equal(observed(x[shuffle], original[shuffle], parts=5).cross_covariance(), expected)
    assert torch.equal(observed(x, original, parts=3, ranges_first=True).cross_covariance(), expected)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(observed(x, original).cross_covariance(), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("ranges_first", [False, True])
def test_hessian_and_drift_may_be_asked_for_in_any_order_and_again(ranges_first: bool) -> None:
    x, original = pair()
    one, other = (observed(x, original, parts=3, ranges_first=ranges_first) for _ in range(2))
    drift, mean, sample = one.cross_covariance(), one.mean_abs(), one.sample(512)
    hessian = one.hessian()
    assert torch.equal(other.hessian(), hessian)
    if ranges_first:
        other.release()
    for observer in (one, other):
        assert torch.equal(observer.cross_covariance(), drift) and torch.equal(observer.hessian(), hessian)
    assert torch.equal(one.mean_abs(), mean) and torch.equal(one.sample(512), sample)


def test_batches_behind_the_drift_are_refused() -> None:
    x, original = pair()
    observer = observed(x, original)
    observer.cross_covariance()
    with pytest.raises(QuantizationError, match="drift was already asked for"):
        observer.observe(x, original=original)


def test_padding_bad_values_and_batches_that_did_not_come_count_as_no_drift() -> None:
    x, original = pair(300)
    mask = torch.rand(300) < 0.7
    masked = CrossCovarianceObserver(24)
    masked.observe(x, mask, original)
    assert torch.equal(masked.cross_covariance(), observed(x[mask], original[mask]).cross_covariance())
    bad = original.clone()
    bad[7, 3] = torch.nan
    repaired = original.clone()
    repaired[7] = x[7]
    assert torch.equal(observed(x, bad).cross_covariance(), observed(x, repaired).cross_covariance())
    half = CrossCovarianceObserver(24)
    half.observe(x[:200], original=original[:200])
    half.observe(x[200:])
    assert torch.equal(half.cross_covariance(), observed(x, torch.cat([original[:200], x[200:]])).cross_covariance())
    with pytest.raises(QuantizationError, match="cannot be paired"):
        CrossCovarianceObserver(24).observe(x, None, original[:-1])
    half.release()
    with pytest.raises(QuantizationError, match="were let go"):
        CrossCovarianceObserver.cross_covariance(released(x, original))


def released(x: Tensor, original: Tensor) -> CrossCovarianceObserver:
    observer = observed(x, original)
    observer.release()
    return observer


def test_a_scale_of_the_inputs_is_taken_off_the_float_models() -> None:
    x, original = pair()
    scale = 2.0 ** torch.randint(-3, 4, (24,))
    scaled = CrossCovarianceObserver(24, scale)
    scaled.observe(x / scale, original=original)
    expected = observed(x, original).cross_covariance() / scale.double() / scale.double().unsqueeze(-1)
    torch.testing.assert_close(scaled.cross_covariance(), expected, rtol=1e-12, atol=0)


def states_of(
    monkeypatch: pytest.MonkeyPatch, family: str, stages: list[dict[str, Any]], *, together: bool = True
) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    """A model swept: what it became, each site's state, and its edit."""
    model = FAMILIES[family]()
    network, batches = Network(model), batches_for(model)
    states: dict[str, Any] = {}
    edits: dict[str, Any] = {}
    real = block_module.observe_cross_covariance

    def keep(*args: Any) -> CrossCovarianceObserver | None:
        found = real(*args)
        for task in args[2]:
            states[task.site.name] = (found.hessian(), found.cross_covariance()) if found is not None else None
        return found

    monkeypatch.setattr(block_module, "observe_cross_covariance", keep)
    if not together:
        monkeypatch.setattr(block_module, "PausedPasses", block_module.RepeatedPasses)
        init = block_module.BlockCalibration.__init__
        monkeypatch.setattr(
            block_module.BlockCalibration,
            "__init__",
            lambda *args, **kwargs: init(*args, **kwargs | {"together": False}),
        )
    work = calibrated_work(
        network,
        resolve(Recipe.load({"stages": stages}).stages, network),
        lambda task, edit, error: edits.__setitem__(task.site.name, edit),
    )
    sweep(network, work, batches, quiet)
    return model, states, edits


@pytest.mark.parametrize("family", ["llama_gqa", "deepseek_v3"])
def test_batches_one_by_one_give_the_same_bits_as_all_together(family: str) -> None:
    found = []
    for together in (True, False):
        with pytest.MonkeyPatch.context() as monkeypatch:
            found.append(states_of(monkeypatch, family, [ASYMMETRIC], together=together))
    (_, states, edits), (_, others, again) = found
    assert states.keys() == others.keys() and edits.keys() == again.keys()
    for name, state in states.items():
        assert all(torch.equal(one, other) for one, other in zip(state, others[name], strict=True)), name
    assert all(torch.equal(edit.tensor.codes, again[name].tensor.codes) for name, edit in edits.items())


def test_each_layer_is_compared_with_what_the_float_model_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, states, _ = states_of(monkeypatch, "llama_gqa", [ASYMMETRIC])
    untouched = FAMILIES["llama_gqa"]()
    network, batches = Network(untouched), batches_for(untouched)
    quantized = goldstick.apply(untouched, {"stages": [ASYMMETRIC]}, data=batches).model
    seen: dict[str, list[list[Tensor]]] = {name: [[], []] for name in states}
    for side, model in enumerate((untouched, quantized)):
        for name in states:
            model.get_submodule(name).register_forward_pre_hook(
                lambda module, args, name=name, side=side: seen[name][side].append(args[0].detach().flatten(0, -2))
            )
        for batch in batches:
            output_tensor(model, batch)
    first = network.blocks[0] + ".self_attn.q_proj"
    assert float(states[first][1].abs().max()) == 0.0
    for name, (_, drift) in states.items():
        original, x = (torch.cat(side) for side in seen[name])
        expected = slow_drift(x, original)
        torch.testing.assert_close(drift, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max() + 1e-9))


def test_layers_rounded_without_data_drift_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FAMILIES["llama_gqa"]()
    stages = [
        {"rtn": {"scheme": "w2a16-g32", "targets": {"include": ["*self_attn*"]}}},
        {"gptq": {**ASYMMETRIC["gptq"], "targets": {"include": ["*mlp*"]}}},
    ]
    sizes = []
    real = block_module.observe_cross_covariance

    def keep(*args: Any) -> CrossCovarianceObserver | None:
        found = real(*args)
        assert found is not None
        sizes.append(float(found.cross_covariance().norm() / found.hessian().norm()))
        return found

    monkeypatch.setattr(block_module, "observe_cross_covariance", keep)
    goldstick.apply(model, {"stages": stages}, data=batches_for(model))
    assert len(sizes) == 4
    assert min(sizes) > 0.01  # the first has nothing before it but attention


def test_with_scales_folded_in_between_the_pairs_still_fit() -> None:
    model = FAMILIES["llama_mha"]()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight[:3] *= 100
            layer.post_attention_layernorm.weight[:3] *= 100
    batches = batches_for(model)
    distance = {}
    for name, stage in (("plain", PLAIN), ("asymmetric", ASYMMETRIC)):
        result = goldstick.apply(
            model, {"stages": [{"awq": {"quantize": False, "grid": 4, "ranges": "minmax"}}, stage]}, data=batches
        )
        assert any("awq_balanced_error" in layer.notes for layer in result.report.layers)
        distance[name] = sum(
            float((output_tensor(result.model, one) - output_tensor(model, one)).norm()) for one in batches
        )
    assert distance["asymmetric"] < 0.9 * distance["plain"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_pairs_fit_where_scales_are_folded_and_where_they_are_multiplied_stage_after_stage(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales: dict[str, Tensor | None] = {}
    real = block_module.observe_cross_covariance

    def keep(*args: Any) -> CrossCovarianceObserver | None:
        found = real(*args)
        assert found is not None
        assert (
            float(found.cross_covariance().norm() / found.hessian().norm()) < 0.02
        )  # 8 bits hardly drift; a scale would
        scales.update({task.site.name: args[4] for task in args[2]})
        return found

    monkeypatch.setattr(block_module, "observe_cross_covariance", keep)
    stages: list[dict[str, Any]] = [
        {"smoothquant": {"unfoldable": "multiply"}},
        {"awq": {"quantize": False, "grid": 6, "unfoldable": "multiply"}},
        {"gptq": {"scheme": "w8a16", "gptaq": True}},
    ]
    model = FAMILIES["llama_gqa"]().to(dtype)
    uneven(model)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.post_attention_layernorm.weight[:4] *= 16
    network, edits = Network(model), dict[str, Any]()
    resolution = resolve(Recipe.load({"stages": stages}).stages, network)
    work = calibrated_work(network, resolution, lambda task, edit, error: edits.__setitem__(task.site.name, edit))
    sweep(network, work, batches_for(model), quiet)
    used = {name: scale for name, scale in scales.items() if scale is not None}
    multiplied = {name for name in used if any(note.endswith("_multiplied") for note in edits[name].notes)}
    assert multiplied and used.keys() - multiplied
    for name in multiplied:
        stored = network.module(network.by_name[name]).input_multiplier
        assert stored.dtype is dtype and torch.equal(used[name], 1 / stored.double())  # what is stored, not s


def test_experts_that_choose_their_tokens_are_solved_as_ever_and_it_is_said() -> None:
    model = FAMILIES["mixtral"]()
    result = goldstick.apply(model, {"stages": [ASYMMETRIC]}, data=batches_for(model))
    for layer in result.report.layers:
        if layer.scheme:
            assert ("symmetric" in layer.notes) == ("experts" in layer.name)


class Residual(nn.Module):
    """A normed two-layer branch beside its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.down(nn.functional.silu(self.up(self.norm(x))))
        return x + inner


class Chain(nn.Module):
    """Four such blocks."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual(width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("scheme", ["w2a16-g32-asym", "w3a16-g32"])
def test_the_last_output_is_nearer_to_the_float_models_on_inputs_never_seen(scheme: str) -> None:
    ratios = []
    for seed in range(3):
        torch.manual_seed(seed)
        model, mix = Chain(), torch.randn(16, 64)
        inputs = torch.randn(1024, 16) @ mix / 4 + 0.3 * torch.randn(1024, 64)
        seen, unseen = inputs[:512], inputs[512:]
        errors = []
        for asymmetric in (False, True):
            recipe = {"stages": [{"gptq": {"scheme": scheme, "gptaq": asymmetric}}]}
            result = goldstick.apply(model, recipe, data=[{"x": seen}])
            with torch.no_grad():
                errors.append(float((result.model(unseen) - model(unseen)).square().mean()))
        ratios.append(errors[1] / errors[0])
    assert sum(ratios) / len(ratios) < 0.95
