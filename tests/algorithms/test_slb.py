"""SLB: the soft assignment against a slow one, where it begins, what it tends to, and what comes out of it."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.algorithms import SLB, soft_assignment
from goldstick.algorithms.slb import SoftLayer
from goldstick.algorithms.soft_assignment import MeanCode, fit_scale, warm_logits, zero_of
from goldstick.core.error import weight_error
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.core.training import TrainingOptions
from goldstick.errors import QuantizationError, RecipeError, StructureError, UsageError
from goldstick.nn import PackedWeight
from goldstick.structure.network import Network
from goldstick.training import TrainingTask
from tests.support.small_networks import TinyResidual, accuracy, batches, trained

pytestmark = pytest.mark.usefixtures("reference_backend")

NAMES = ["w1a16-channel-asym", "w2a16-channel-asym", "w4a16-channel-asym", "w3a16-g4-asym", "w2a16-channel"]


@pytest.fixture(scope="module")
def learned() -> TinyResidual:
    """A network that has learned its data."""
    with torch.random.fork_rng():
        return trained()


def slow_mean(logits: Tensor, temperature: float) -> Tensor:
    """Σ_k k·exp(T·A_k) / Σ_k exp(T·A_k), number by number in float64."""
    result = torch.empty(logits.shape[1:], dtype=torch.float64)
    for row in range(logits.shape[1]):
        for column in range(logits.shape[2]):
            powers = [math.exp(temperature * value) for value in logits[:, row, column].tolist()]
            result[row, column] = sum(k * power for k, power in enumerate(powers)) / sum(powers)
    return result


@pytest.mark.parametrize("rows_at_once", [1, 2, 100])
def test_the_mean_code_and_its_gradient_are_the_formula_s(rows_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(4, 5, 3, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr(soft_assignment, "LOGITS_AT_ONCE", rows_at_once * 12)
    torch.testing.assert_close(MeanCode.apply(logits, 1.7), slow_mean(logits.detach(), 1.7))
    assert torch.autograd.gradcheck(lambda given: MeanCode.apply(given, 1.7), (logits,))


@pytest.mark.parametrize("name", NAMES)
def test_the_step_at_the_start_has_no_better_neighbour(name: str) -> None:
    grid = Scheme.parse(name).weight
    weight = torch.randn(6, 8) * torch.logspace(-3, 1, 6).unsqueeze(1)
    scale = fit_scale(weight, grid)

    def error(factor: float) -> Tensor:
        tensor = assigned(weight, scale * factor, name)
        return (weight - tensor.dequantize()).square().reshape(6, scale.shape[1], -1).sum(-1)

    assert scale.shape == (6, grid.groups(8))
    assert (scale > 0).all()
    best = error(1.0)
    for factor in (0.9, 0.98, 1.02, 1.1):
        assert (best <= error(factor) * (1 + 1e-5)).all()


def test_one_bit_starts_at_the_mean_of_absolute_values_and_the_signs() -> None:
    weight = torch.randn(5, 16)
    scale = fit_scale(weight, Scheme.parse("w1a16-channel-asym").weight)
    torch.testing.assert_close(scale / 2, weight.abs().mean(1, keepdim=True))
    tensor = assigned(weight, scale, "w1a16-channel-asym")
    assert torch.equal(tensor.dequantize().sign(), weight.sign())


def assigned(weight: Tensor, scale: Tensor, name: str) -> QuantizedTensor:
    """The likeliest codes at the start."""
    grid = Scheme.parse(name).weight
    codes = warm_logits(weight, scale, grid).argmax(0).to(torch.uint8)
    zero = None if grid.symmetric else torch.full_like(scale, zero_of(grid))
    return QuantizedTensor(codes=codes, scale=scale, zero=zero, grid=grid)


def test_a_row_of_zeros_stays_next_to_nothing() -> None:
    for name in NAMES:
        weight = torch.zeros(2, 8)
        tensor = assigned(weight, fit_scale(weight, Scheme.parse(name).weight), name)
        assert tensor.dequantize().abs().max() < 1e-30


def test_the_soft_weight_at_the_start_is_the_float_weight_between_the_outermost_levels() -> None:
    grid = Scheme.parse("w3a16-channel-asym").weight
    weight = torch.linspace(-1, 1, 41).reshape(1, -1)
    scale = torch.full((1, 1), 2 / 7)
    soft = (MeanCode.apply(warm_logits(weight, scale, grid), 1.0) - zero_of(grid)) * scale
    inner = weight.abs() < 1 - 1.5 * 2 / 7
    assert (soft - weight)[inner].abs().max() < 0.024 * 2 / 7
    assert (soft - weight).abs().max() > 0.05 * 2 / 7  # the outermost levels pull inwards


@pytest.mark.parametrize("bits", [3, 4])
def test_it_starts_nearer_to_the_weights_than_rounding_to_levels_that_reach_the_largest(bits: int) -> None:
    weight = torch.randn(16, 72)
    name = f"w{bits}a16-channel-asym"
    grid = Scheme.parse(name).weight
    largest = weight.abs().amax(1, keepdim=True)
    levels = torch.linspace(-1, 1, 2**bits)
    nearest = (weight.unsqueeze(-1) - largest.unsqueeze(-1) * levels).abs().argmin(-1)
    rounded = (weight - largest * levels[nearest]).square().sum()
    assert weight_error(weight, assigned(weight, fit_scale(weight, grid), name)).noise < rounded


@pytest.mark.parametrize("bits", [3, 4])
def test_untrained_it_is_as_accurate_as_rounding(bits: int, learned: TinyResidual) -> None:
    recipe = {
        "stages": [{"rtn": {"scheme": f"w{bits}a16-channel-asym", "targets": {"exclude": ["stem", "classifier"]}}}]
    }
    rounded = accuracy(goldstick.apply(learned, recipe).model)
    nothing = TrainingTask(batches=batches(1), train=lambda model, anneal: None)
    started = accuracy(applied(learned, f"w{bits}a16-channel-asym", nothing, norm_batches=0).model)
    assert started >= rounded - 0.02
    assert rounded > 0.8


def applied(model: nn.Module, name: str, task: TrainingTask, **given: Any) -> Any:
    options = {"epochs": 6, "rate": 3e-3, "norm_batches": 8} | given
    return goldstick.apply(model, {"stages": [{"slb": {"scheme": name, "training": options}}]}, training=task)


def test_a_high_temperature_gives_the_argmax() -> None:
    layer = nn.Conv2d(3, 4, 3)
    site = Network(nn.Sequential(layer)).sites[0]
    soft = SLB(scheme="w2a16-channel-asym").wrap(site, layer, Scheme.parse("w2a16-channel-asym")).train()
    soft.temperature = 1e9
    torch.testing.assert_close(soft.weight, soft.eval().weight)
    soft.train().temperature = 1.0
    assert not torch.allclose(soft.weight, soft.eval().weight, atol=1e-2)


def test_weights_are_soft_then_discrete_with_soft_gradients_then_fixed() -> None:
    layer = nn.Linear(4, 4)
    site = Network(nn.Sequential(layer)).sites[0]
    options = SLB(scheme="w2a16-channel-asym", temperature=16.0, anneal_from=0.2, discrete_from=0.6, harden_at=0.9)
    soft = options.wrap(site, layer, Scheme.parse("w2a16-channel-asym"))
    found = []
    shares = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 0.9, 1.0)
    discrete, learns = [], []
    for progress in shares:
        soft.train().anneal(progress)
        found.append(soft.temperature)
        weight = soft.weight
        discrete.append(torch.equal(weight, soft.eval().weight))
        learns.append(bool(torch.autograd.grad(weight.sum() + 0 * soft.logits.sum(), soft.logits)[0].any()))
    assert found == pytest.approx([1, 1, 2, 4, 8, 16, 16, math.inf, math.inf])
    assert discrete == [share >= 0.6 for share in shares]
    assert learns == [share < 0.9 for share in shares]


def test_with_discrete_codes_the_gradient_is_that_of_the_mean() -> None:
    logits = torch.randn(4, 5, 3, dtype=torch.float64, requires_grad=True)
    towards = torch.randn(5, 3, dtype=torch.float64)
    found = MeanCode.apply(logits, 1.7, True)
    assert torch.equal(found, logits.argmax(0).double())
    gradients = [torch.autograd.grad(MeanCode.apply(logits, 1.7, hard), logits, towards)[0] for hard in (True, False)]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", ["w1a16-channel-asym", "w2a16-channel-asym", "w3a16-g4-asym"])
def test_the_result_is_the_trained_network(name: str, learned: TinyResidual, tmp_path: Path) -> None:
    seen: list[nn.Module] = []

    def keep(model: nn.Module) -> float:
        seen[:] = [copy.deepcopy(model)]
        return len(seen)

    before = copy.deepcopy(learned.state_dict())
    task = TrainingTask(batches=batches(), validate=lambda model: keep(model) + next(rising))
    rising = iter(range(100))
    result = applied(learned, name, task, epochs=2)
    inputs, _ = batches(1, seed=5)[0]
    with torch.no_grad():
        expected = seen[0].eval()(inputs)
        found = result.model(inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for path in ("first", "second", "hidden"):
        packed, soft = result.model.get_submodule(path), seen[0].get_submodule(path)
        assert isinstance(packed, PackedWeight)
        assert isinstance(soft, SoftLayer)
        assert torch.equal(packed.dequantized().reshape(soft.weight.shape), soft.weight)
    assert all(torch.equal(value, before[key]) for key, value in learned.state_dict().items())
    if name != "w1a16-channel-asym":
        return  # one checkpoint is enough: the others are packed in the same way
    result.save(tmp_path / "checkpoint")
    loaded = goldstick.load(tmp_path / "checkpoint", model=TinyResidual())
    with torch.no_grad():
        assert torch.equal(loaded(inputs), found)


@pytest.mark.parametrize("name", ["w8a8-dynamic", "w2a8-dynamic-channel-asym", "w4a4-dynamic"])
def test_with_rounded_activations_the_result_is_the_trained_network(name: str, learned: TinyResidual) -> None:
    seen: list[nn.Module] = []
    task = TrainingTask(batches=batches(), validate=lambda model: seen.append(copy.deepcopy(model)) or len(seen))
    training = {"epochs": 2, "rate": 3e-3, "norm_batches": 8}
    stage = {"scheme": name, "ends": True, "targets": {"include": ["hidden", "classifier"]}, "training": training}
    result = goldstick.apply(learned, {"stages": [{"slb": stage}]}, training=task)
    inputs, _ = batches(1, seed=5)[0]
    soft = seen[-1].eval().get_submodule("hidden")
    assert isinstance(soft, SoftLayer)
    x = torch.randn(5, 8)
    with torch.no_grad():
        torch.testing.assert_close(result.model(inputs), seen[-1](inputs), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(result.model.get_submodule("hidden")(x), soft(x))
        assert (soft(x) - nn.functional.linear(x, soft.weight, soft.layer.bias)).abs().max() > 1e-4


def test_it_beats_rounding_to_the_same_bits(learned: TinyResidual) -> None:
    rounding = {"scheme": "w1a16-channel-asym", "range_search": "hqq", "targets": {"exclude": ["stem", "classifier"]}}
    rounded = accuracy(goldstick.apply(learned, {"stages": [{"rtn": rounding}]}).model)
    searched = accuracy(applied(learned, "w1a16-channel-asym", TrainingTask(batches=batches(20))).model)
    assert searched > rounded + 0.1
    assert searched > accuracy(learned) - 0.1


def test_equal_runs_give_equal_bits(learned: TinyResidual) -> None:
    def run() -> dict[str, Tensor]:
        task = TrainingTask(batches=batches(2))
        state: dict[str, Tensor] = applied(learned, "w2a16-channel-asym", task, epochs=2).model.state_dict()
        return state

    first, second = run(), run()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_report_accounts_for_the_search_and_for_what_it_spared(learned: TinyResidual) -> None:
    result = applied(learned, "w2a16-channel-asym", TrainingTask(batches=batches(4), validate=accuracy), epochs=3)
    records = {record.name: record for record in result.report.layers}
    assert records["first.weight"].scheme == "w2a16-channel-asym"
    assert 0 < records["first.weight"].notes["codes_moved"] < 1
    assert "first layer" in (records["stem.weight"].reason or "")
    assert "last layer" in (records["classifier.weight"].reason or "")
    words = 8 * math.ceil(72 * 2 / 32)
    assert records["first.weight"].bytes_after == 4 * (words + 8 + 8)  # codes, scales, zeros
    (training,) = result.report.training
    assert training["stage"] == "slb"
    assert training["steps"] == 12
    assert len(training["scores"]) == 3
    assert result.report.format == "native"
    again = goldstick.apply(
        learned,
        {"stages": [{"slb": {"scheme": "w2a16-channel-asym", "ends": True, "training": {"steps": 1}}}]},
        training=TrainingTask(batches=batches(1)),
    )
    assert isinstance(again.model.stem, PackedWeight)


def test_a_finetuned_network_can_be_rounded_in_the_same_recipe(learned: TinyResidual) -> None:
    recipe = {
        "stages": [
            {"finetune": {"training": {"steps": 3}}},
            {"slb": {"scheme": "w2a16-channel-asym", "training": {"steps": 3}, "targets": {"include": ["first"]}}},
            {"rtn": {"scheme": "w8a16", "targets": {"include": ["second"]}}},
        ]
    }
    result = goldstick.apply(learned, recipe, training=TrainingTask(batches=batches(2)))
    assert [one["stage"] for one in result.report.training] == ["finetune", "slb"]
    schemes = {record.name: record.scheme for record in result.report.layers if record.scheme}
    assert schemes == {"first.weight": "w2a16-channel-asym", "second.weight": "w8a16-channel"}
    assert not torch.equal(result.model.stem.weight, learned.stem.weight)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scheme": "w1a16-channel"}, "slb cannot make w1a16-channel of a weight: with whole zeros"),
        ({"scheme": "w8a8-static"}, "rounded for each token"),
        ({"scheme": "w4afp8"}, "rounds them to e4m3"),
        ({"anneal_from": 0.25}, "the first below the others"),
        ({"discrete_from": 0.95}, "the last not below them"),
        ({"temperature": 0.5}, "at least 1"),
        ({"training": {"epoch": 3}}, "did you mean 'epochs'"),
    ],
)
def test_options_without_meaning_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        goldstick.Recipe.load({"stages": [{"slb": options}]})


def test_what_cannot_be_trained_is_refused(learned: TinyResidual) -> None:
    task = TrainingTask(batches=batches(1))
    with pytest.raises(RecipeError, match="nothing to train on: give training="):
        goldstick.apply(learned, {"stages": ["slb"]})
    with pytest.raises(UsageError, match="leave out training="):
        goldstick.apply(learned, "rtn-w8a16", training=task)
    with pytest.raises(RecipeError, match="put the stages that train first"):
        goldstick.apply(learned, {"stages": [{"rtn": {"targets": {"include": ["first"]}}}, "slb"]}, training=task)
    with pytest.raises(RecipeError, match="whose codes are trained"):
        goldstick.apply(learned, {"stages": ["slb", "smoothquant"]}, training=task)
    with pytest.raises(RecipeError, match="fine-tune before it"):
        goldstick.apply(learned, {"stages": ["slb", "finetune"]}, training=task)
    with pytest.raises(RecipeError, match="of the kind embedding, and slb trains"):
        embedded = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8), nn.Linear(8, 4))
        stage = {"slb": {"targets": {"include": ["0"]}}}
        goldstick.apply(embedded, {"stages": [stage]}, training=task)
    with pytest.raises(RecipeError, match="set ends: true"):
        goldstick.apply(nn.Sequential(nn.Linear(4, 4)), {"stages": ["slb"]}, training=task)
    with pytest.raises(QuantizationError, match="NaN"):
        broken = copy.deepcopy(learned)
        broken.first.weight.data[0, 0, 0, 0] = torch.nan
        applied(broken, "w2a16-channel-asym", task)
    with pytest.raises(QuantizationError, match="was not trained"):
        network = Network(learned)
        site = network.by_name["first"]
        SLB().solve(site, network.weight(site), None, Scheme.parse("w4a16-channel-asym"))


def test_a_shared_weight_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].weight = model[1].weight
    stage = {"slb": {"targets": {"include": ["1"]}, "training": TrainingOptions(steps=1), "tie": "untie"}}
    data = [(torch.randn(3, 4), torch.zeros(3, dtype=torch.long))]
    with pytest.raises(StructureError, match="shares its weight"):
        goldstick.apply(model, {"stages": [stage]}, training=TrainingTask(batches=data))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_of_16_bits_everything_else_learns_in_float32_and_the_result_is_the_trained_network(dtype: torch.dtype) -> None:
    seen: list[nn.Module] = []
    held: set[torch.dtype] = set()

    def keep(model: nn.Module) -> float:
        seen[:] = [copy.deepcopy(model)]
        held.update(value.dtype for value in model.parameters())
        return 0.0

    torch.manual_seed(0)
    model = TinyResidual().to(dtype).eval()
    data = [(images.to(dtype), classes) for images, classes in batches(4)]
    task = TrainingTask(batches=data, validate=keep)
    result = applied(model, "w4a16-channel-asym", task, epochs=1, rate=1e-3)
    assert held == {torch.float32}
    assert {value.dtype for value in result.model.parameters()} == {dtype}
    packed, soft = result.model.get_submodule("first"), seen[0].eval().get_submodule("first")
    assert isinstance(packed, PackedWeight) and isinstance(soft, SoftLayer)
    assert torch.equal(packed.dequantized().reshape(soft.weight.shape).float(), soft.weight)
    assert not torch.equal(result.model.get_submodule("classifier").weight, model.classifier.weight)
    with torch.no_grad():
        expected = seen[0](data[0][0])
        apart = (result.model(data[0][0]).float() - expected).abs().max()
    assert apart < 20 * torch.finfo(dtype).eps * expected.abs().max()
