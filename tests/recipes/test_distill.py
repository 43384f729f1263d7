"""Distillation to the end: what it learns, what it leaves, never worse on batches it has not learned from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import goldstick
from goldstick.algorithms import Distill
from goldstick.errors import QuantizationError, RecipeError, UsageError
from goldstick.nn import QuantizedLinear
from tests.support.calibration import Batches, seeded_llama, token_batches

pytestmark = pytest.mark.usefixtures("reference_backend")

FAST = {"epochs": 2, "rate": 0.01, "norms_rate": 0.001, "holdout": 0.25}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """A model whose predictions are not all alike."""
    made = seeded_llama()
    with torch.no_grad():
        made.lm_head.weight.mul_(3)
    return made


def distilled(model: nn.Module, *stages: Any, data: Any = None, **options: Any) -> goldstick.Result:
    recipe = {"stages": [*stages, {"distill": {**FAST, **options}}]}
    return goldstick.apply(model, recipe, data=data or token_batches(8))


def account(result: goldstick.Result) -> dict[str, Any]:
    (found,) = [one for one in result.report.training if one["stage"] == "distill"]
    return dict(found)


def divergence(model: nn.Module, teacher: nn.Module, batches: Batches) -> float:
    """The mean over batches of the mean KL of their tokens."""
    means = []
    for batch in batches:
        with torch.no_grad():
            t, z = (one(**batch).logits.double().log_softmax(-1) for one in (teacher, model))
        means.append(float((t.exp() * (t - z)).sum(-1).mean()))
    return sum(means) / len(means)


def layers(model: nn.Module) -> dict[str, QuantizedLinear]:
    return {name: one for name, one in model.named_modules() if isinstance(one, QuantizedLinear)}


def test_codes_stay_scales_and_norms_learn_and_the_held_out_divergence_falls(model: PreTrainedModel) -> None:
    stage = {"gptq": {"scheme": "w2a16-g16", "range_search": "minmax"}}  # searched ranges leave scales little to learn
    plain = goldstick.apply(model, {"stages": [stage]}, data=token_batches(8))
    result = distilled(model, stage)
    told = account(result)
    before, after = layers(plain.model), layers(result.model)
    assert list(before) == list(after) and before
    for name, layer in after.items():
        assert type(layer) is type(before[name])
        assert torch.equal(layer.weight_packed, before[name].weight_packed)
        assert not torch.equal(layer.weight_scale, before[name].weight_scale)
    changed = [
        name
        for name, value in result.model.named_parameters()
        if not name.endswith("weight_scale") and not torch.equal(value, plain.model.get_parameter(name))
    ]
    assert changed and all("norm" in name for name in changed) and told["norms"] == len(changed)
    held = token_batches(8)[6:]
    start, end = told["held_out"]
    assert start == pytest.approx(divergence(plain.model, model, held), rel=1e-4)
    assert end == pytest.approx(divergence(result.model, model, held), rel=1e-4)
    assert end < start
    assert (told["kept_epoch"], told["held_out_batches"], told["layers"]) == (2, 2, len(after))
    assert told["steps"] == 2 * 6
    assert not any(value.requires_grad for value in result.model.parameters() if value.ndim == 0)


def test_the_errors_that_are_told_are_those_of_the_scales_that_were_learned(model: PreTrainedModel) -> None:
    result = distilled(model, {"rtn": {"scheme": "w3a16-g16"}})
    for record in result.report.layers:
        layer = layers(result.model).get(record.name)
        if layer is None:
            continue
        weight = model.get_submodule(record.name).get_parameter("weight").detach()
        noise = (weight - layer.dequantized()).double().square().sum()
        decibels = float(10 * torch.log10(weight.double().square().sum() / noise))
        assert record.sqnr_db == pytest.approx(decibels, abs=1e-3), record.name


def test_where_nothing_gets_better_the_start_is_kept(model: PreTrainedModel) -> None:
    stage = {"gptq": {"scheme": "w4a16-g16"}}
    plain = goldstick.apply(model, {"stages": [stage]}, data=token_batches(8)).model
    result = distilled(model, stage, rate=3.0, norms_rate=3.0)
    told = account(result)
    assert told["kept_epoch"] == 0 and told["held_out"][0] == told["held_out"][1]
    for name, value in result.model.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name


def test_learning_that_diverges_leaves_the_start_and_says_so(model: PreTrainedModel) -> None:
    told = account(distilled(model, {"rtn": {"scheme": "w4a16-g16"}}, rate=1e30))
    assert told["kept_epoch"] == 0
    assert "diverged" in told["stopped"] or "NaN" in told["stopped"]


def test_powers_of_two_stay_and_norms_alone_learn(model: PreTrainedModel) -> None:
    told = account(distilled(model, {"rtn": {"scheme": "mxfp4a16"}}))
    assert told["layers"] == 0 and told["norms"] > 0
    assert told["held_out"][1] < told["held_out"][0]


@pytest.mark.parametrize(("scheme", "learns"), [("q4_0", True), ("q4_1", False)])  # Q4_1 has minimums made of scales
def test_what_gguf_holds_stays_what_it_can_hold(scheme: str, learns: bool, model: PreTrainedModel) -> None:
    result = distilled(model, {"rtn": {"scheme": scheme, "range_search": "ggml"}}, rate=0.002, norms_rate=0.0001)
    told = account(result)
    assert (told["layers"] > 0) is learns and told["kept_epoch"] > 0
    for layer in layers(result.model).values():
        scale = layer.weight_scale.detach()
        assert torch.equal(scale.half().to(scale), scale)


def test_a_tied_head_and_layers_of_other_kinds_let_gradients_pass(model: PreTrainedModel) -> None:
    tied = seeded_llama()
    tied.config.tie_word_embeddings = True
    tied.tie_weights()
    embedding = {"rtn": {"scheme": "w8a16", "targets": {"include": ["@embedding", "@head"]}, "tie": "keep"}}
    told = account(distilled(tied, {"rtn": {"scheme": "w2a16-g16"}}, embedding))
    assert told["held_out"][1] < told["held_out"][0]


class Plain(nn.Module):
    """A module that is no transformers model: convolutions, a norm, linear layers, scores as a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Scores [rows, 10]."""
        return self.head(self.features(x).mean((-1, -2)))  # type: ignore[no-any-return]


def test_a_classifier_learns_too_in_evaluation_mode() -> None:
    generator = torch.Generator().manual_seed(0)
    images = [torch.randn(8, 3, 8, 8, generator=generator) for _ in range(8)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Plain().eval()
        network.head[-1].weight.data.mul_(8)  # type: ignore[operator,union-attr]
    result = distilled(
        network, {"rtn": {"scheme": "w2a16-g16", "group_size_mismatch": "channel"}}, data=images, epochs=8
    )
    told = account(result)
    assert told["held_out"][1] < told["held_out"][0]
    assert torch.equal(result.model.features[1].running_mean, network.features[1].running_mean)  # type: ignore[index,union-attr]


class ByKeyword(nn.Module):
    """It calls its layer by keyword, and reads what the layer says of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [rows, 64]."""
        assert isinstance(self.inner, nn.Linear)
        return self.inner(input=x) / self.inner.in_features  # type: ignore[no-any-return]


class Attending(nn.Module):
    """Torch's attention reads the weight of its output projection, and does not call it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.head = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [rows, 8]."""
        x = x.unflatten(0, (2, -1))
        return self.head(self.attention(x, x, x, need_weights=False)[0]).flatten(0, 1)  # type: ignore[no-any-return]


class Remembering(nn.Module):
    """As RWKV it changes a state in place that it reads again, unless it is told to keep nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor, use_cache: bool = True) -> Tensor:
        """Scores [rows, 64]."""
        state = self.first(x)
        found: Tensor = self.second(state * state)
        if use_cache:
            state[:, 0] = found[:, -1]
        return found


@pytest.mark.parametrize("kind", [ByKeyword, Attending, Remembering])
def test_layers_learn_wherever_and_however_they_are_called(kind: type[nn.Module]) -> None:
    generator = torch.Generator().manual_seed(0)
    data = [torch.randn(8, 64, generator=generator) for _ in range(8)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = kind().eval()
    for parameter in network.parameters():
        parameter.data.mul_(2)
    result = distilled(network, {"rtn": {"scheme": "w2a16-g16"}}, data=data)
    told = account(result)
    assert told["layers"] > 0 and told["held_out"][1] < told["held_out"][0]
    before, after = (dict(one.named_modules()) for one in (network, result.model))
    assert all(isinstance(after[name], type(before[name])) for name in before)


def test_padding_does_not_count(model: PreTrainedModel) -> None:
    def padded(token: int) -> list[dict[str, Tensor]]:
        found = []
        for batch in token_batches(4):
            ids, mask = batch["input_ids"].clone(), torch.ones_like(batch["input_ids"])
            ids[:, 10:], mask[:, 10:] = token, 0
            found.append({"input_ids": ids, "attention_mask": mask})
        return found

    first, second = (
        account(distilled(model, {"rtn": {"scheme": "w2a16-g16"}}, data=padded(token), norms_rate=0.0))
        for token in (5, 9)
    )
    assert first["held_out"][0] == pytest.approx(second["held_out"][0], rel=1e-5)


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        ([{"distill": {}}, {"rtn": {}}], "rtn comes after it"),
        ([{"distill": {}}], "no stage before it quantizes a layer"),
        ([{"rtn": {}}, {"distill": {}}, {"distill": {}}], "one such stage at most"),
        ([{"rtn": {}}, {"distill": {}}, {"learn": {}}], "learn comes after it"),
    ],
)
def test_it_comes_last_once_and_behind_what_rounds(stages: list[Any], problem: str, model: PreTrainedModel) -> None:
    with pytest.raises(RecipeError, match=problem):
        goldstick.apply(model, {"stages": stages}, data=token_batches(4))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"epochs": 0}, "epochs is at least 1"), ({"holdout": 0.0}, "holdout is a share"),
        ({"holdout": 0.6}, "holdout is a share"), ({"rate": 0.0}, "rate is positive"),
        ({"rate": float("inf")}, "rate is positive"), ({"norms_rate": -1.0}, "norms_rate is 0 or more"),
        ({"seed": 2**70}, "seed"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        Distill(**options)


def test_one_row_cannot_be_held_out(model: PreTrainedModel) -> None:
    with pytest.raises(QuantizationError, match="give at least 2"):
        distilled(model, {"rtn": {"scheme": "w4a16-g16"}}, data=token_batches(1, rows=1))


def test_a_network_without_scores_is_refused_before_anything_is_rounded() -> None:
    class States(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> SimpleNamespace:
            return SimpleNamespace(last_hidden_state=self.layer(x))

    told: list[str] = []
    with pytest.raises(UsageError, match="Distillation compares scores"):
        goldstick.apply(
            States(),
            {"stages": [{"rtn": {"scheme": "w4a16-g16"}}, {"distill": FAST}]},
            data=[torch.randn(4, 16) for _ in range(4)],
            progress=lambda what, *_: told.append(what),
        )
    assert "quantizing" not in told


def test_the_word_stands_behind_what_searches_codes() -> None:
    for words, stages in {
        "rtn-distill-w4a16-g128": "rtn distill",
        "gptq-learn-distill-w2a16-g64-kv8": "gptq learn distill kv_cache",
    }.items():
        assert [stage.name for stage in goldstick.Recipe.load(words).stages] == stages.split()
    best = goldstick.Recipe.load("gptq-distill-w4a16-g128").with_effort("best")
    assert [stage.name for stage in best.stages] == ["gptq", "validate", "learn", "distill"]
