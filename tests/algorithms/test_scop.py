"""SCOP: the gate and the score against their formulas, what goes first, and that what is left is read back equal."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.algorithms.channel_choice import Scope, knockoff_scores, lowest, to_share
from goldstick.algorithms.channel_gate import ChannelGate
from goldstick.core.scatter import ScatteredBatchNorm
from goldstick.errors import DataError, RecipeError, StructureError
from goldstick.jobs.save.result import Result
from goldstick.training import TrainingTask
from goldstick.training.knockoff_model import KnockoffModel
from tests.support.small_networks import TinyResidual, accuracy, batches, trained
from tests.support.tiny_models import FAMILIES

SCOPES: tuple[Scope, ...] = ("layer", "global")

pytestmark = pytest.mark.usefixtures("reference_backend")


@pytest.fixture(scope="module")
def learned() -> TinyResidual:
    """A network that has learned its data."""
    with torch.random.fork_rng():
        return trained()


def pruned(model: nn.Module, *after: Any, task: TrainingTask | None = None, **options: Any) -> Result:
    training = {"epochs": 2, "rate": 0.02, "norm_batches": 0}
    stage = {"scop": {"training": training, **options}}
    return goldstick.apply(model, {"stages": [stage, *after]}, training=task or TrainingTask(batches=batches(8)))


def test_a_gate_mixes_the_real_half_alone_and_is_the_layer_in_evaluation_mode() -> None:
    conv, x = nn.Conv2d(3, 4, 3), torch.randn(6, 3, 8, 8)
    gate = ChannelGate(conv, (0, 0, 1, -1), 2, reads=False)
    with torch.no_grad():
        gate.beta.copy_(torch.tensor([0.25, 1.5]))
    gate.anneal(0.5)
    assert gate.beta.tolist() == [0.25, 1.0]
    y = conv(x)
    found = gate(x)
    assert torch.equal(found[3:], y[3:])
    for channel, beta in enumerate((0.25, 0.25, 1.0, 1.0)):
        torch.testing.assert_close(found[:3, channel], beta * y[:3, channel] + (1 - beta) * y[3:, channel])
    assert torch.equal(gate.eval()(x), y)
    expected = y[:3].double().square().mean((0, 2, 3))
    root_mean_squares = torch.stack([expected[:2].mean(), expected[2]]).sqrt()
    torch.testing.assert_close(gate.strength(), root_mean_squares)
    gate.train()(x)  # more of the same data
    torch.testing.assert_close(gate.strength(), root_mean_squares)
    linear = nn.Linear(4, 5)
    reading, x = ChannelGate(linear, (0, 1, 1, 0), 2, reads=True), torch.randn(2, 7, 4)
    mixed = torch.cat([0.5 * x[:1] + 0.5 * x[1:], x[1:]])
    torch.testing.assert_close(reading(x), linear(mixed))


class Concatenation(nn.Module):
    """A layer that alone reads two groups of channels and makes a third, which two layers read."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.left, self.right = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 6, 1)
        self.both = nn.Conv2d(10, 8, 3, padding=1)
        self.one, self.other = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).relu()
        x = self.both(torch.cat([self.left(x).relu(), self.right(x).relu()], 1)).relu().mean((2, 3))
        scores: Tensor = self.one(x) + self.other(x).tanh()
        return scores


def test_a_layer_that_belongs_to_several_groups_has_a_gate_for_each_and_is_itself_again_afterwards() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Concatenation()
    result = pruned(model, rate=0.5, task=TrainingTask(batches=batches(2)))
    (pruning,) = result.report.pruning
    assert {layer["name"]: layer["kept"] for layer in pruning["layers"]} == {"left": 2, "right": 3, "both": 4}
    assert all(max(map(abs, layer["scores"])) > 0 for layer in pruning["layers"])
    assert not any(isinstance(module, ChannelGate) for module in result.model.modules())
    assert result.model(batches(1)[0][0]).shape == (32, 4)


class Dense(nn.Module):
    """A batch norm over a concatenation, as in DenseNets."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.grow = nn.Conv2d(4, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(10)
        self.last = nn.Linear(10, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        x = self.norm(torch.cat([x, self.grow(x.relu())], 1)).relu()
        scores: Tensor = self.last(x.mean((2, 3)))
        return scores


@pytest.mark.parametrize("criterion", ["knockoffs", "magnitude"])
def test_channels_are_as_strong_as_their_part_of_a_norm_over_a_concatenation(criterion: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Dense()
    with torch.no_grad():
        model.norm.weight.copy_(torch.arange(10.0))
    (pruning,) = pruned(model, rate=0.5, criterion=criterion, task=TrainingTask(batches=batches(2))).report.pruning
    (layer,) = pruning["layers"]
    assert layer["name"] == "grow"
    if criterion == "magnitude":
        assert layer["scores"] == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
        assert layer["dropped"] == [0, 1, 2]


@pytest.mark.parametrize("criterion", ["knockoffs", "magnitude"])
def test_no_layer_goes_because_its_strengths_are_of_another_kind_or_size(criterion: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
            nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
            nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()),
            nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
            nn.Linear(8, 4),
        )
    with torch.no_grad():
        model[2][0].weight.mul_(100)  # type: ignore[index, operator, union-attr]
        model[3][0].weight.div_(100)  # type: ignore[index, operator, union-attr]
    training = {"steps": 1, "rate": 1.0, "norm_batches": 0}  # β is 0 or 1 after such a step: scores are ±strengths
    options = {"rate": 0.5, "scope": "global", "criterion": criterion, "training": training}
    result = pruned(model, task=TrainingTask(batches=batches(2)), **options)
    layers = result.report.pruning[0]["layers"]
    assert [layer["name"] for layer in layers] == ["1.0", "2.0", "3.0"]
    assert all(abs(torch.tensor(layer["scores"]).abs().mean() - 1) < 1e-6 for layer in layers)
    assert all(layer["kept"] >= 2 for layer in layers)


def test_scores_and_choices_are_what_the_formula_says() -> None:
    scores = knockoff_scores(torch.tensor([2.0, -3.0]), torch.tensor([0.75, 0.0]))
    assert scores.tolist() == [1.0, -3.0]
    many = {"a": torch.tensor([0.3, 0.1, 0.2, 0.1]), "b": torch.tensor([5.0, 4.0])}
    assert lowest(many, 0.5, "layer") == {"a": [1, 3], "b": [1]}
    assert lowest(many, 0.99, "layer") == {"a": [1, 3, 2], "b": [1]}
    assert lowest(many, 0.5, "global") == {"a": [1, 3, 2], "b": []}
    assert lowest(many, 0.99, "global") == {"a": [1, 3, 2], "b": [1]}  # each keeps one

    hundred = {"a": torch.arange(100.0)}  # 0.29 · 100 is 28.999999999999996 in floats
    assert all(len(lowest(hundred, share / 100, scope)["a"]) == share for share in range(100) for scope in SCOPES)

    def left_of(choice: dict[str, list[int]]) -> float:
        return 1 - sum(map(len, choice.values())) / 6

    assert to_share(many, 0.7, "global", left_of) == {"a": [1, 3], "b": []}
    assert to_share(many, 0.0, "global", left_of) == {"a": [1, 3, 2], "b": [1]}
    # Three of four would go where two may stay; of "b" one of two, where three stay or all.
    assert lowest(many, 0.99, "layer", {"a": 2, "b": 3}) == {"a": [1, 3], "b": []}
    assert to_share(many, 0.7, "global", left_of, {"a": 4}) == {"a": [], "b": [1]}


def planted(learned: TinyResidual) -> TinyResidual:
    """The network with 8 more channels in its middle that hold noise: random filters, read by random columns."""
    model = copy.deepcopy(learned)
    generator = torch.Generator().manual_seed(0)

    def beside(values: Tensor, noise: Tensor, axis: int = 0) -> nn.Parameter:
        return nn.Parameter(torch.cat([values.detach(), noise], axis))

    first, norm, second = model.first, model.first_norm, model.second
    filters = torch.randn(first.weight.shape, generator=generator) * first.weight.std()
    columns = torch.randn(second.weight.shape, generator=generator) * second.weight.std()
    first.weight, second.weight = beside(first.weight, filters), beside(second.weight, columns, 1)
    norm.weight = beside(norm.weight, norm.weight.detach().flip(0))  # as strong as the others
    norm.bias = beside(norm.bias, norm.bias.detach().flip(0))
    first.out_channels = second.in_channels = norm.num_features = 16
    for name in ("running_mean", "running_var"):
        norm.register_buffer(name, torch.cat([getattr(norm, name), getattr(norm, name)]))
    task = TrainingTask(batches=batches(8))
    still = {"rate": 1e-12, "steps": 1, "norm_batches": 8}  # only the noise's statistics are measured
    fitted = goldstick.apply(model, {"stages": [{"finetune": {"training": still}}]}, training=task).model
    assert isinstance(fitted, TinyResidual)
    return fitted


@pytest.mark.parametrize("knockoffs", ["shuffle", "gaussian"])
def test_planted_noise_goes_first(learned: TinyResidual, knockoffs: str) -> None:
    model = planted(learned)
    target = {"targets": {"include": ["first"]}, "rate": 0.5}
    training = {"epochs": 6, "rate": 0.02, "norm_batches": 0}
    task = TrainingTask(batches=batches(20))
    (layer,) = pruned(model, task=task, knockoffs=knockoffs, training=training, **target).report.pruning[0]["layers"]
    false = sum(unit < 8 for unit in layer["dropped"]) / 8
    (strong,) = pruned(model, task=task, criterion="magnitude", **target).report.pruning[0]["layers"]
    by_gain = sum(unit < 8 for unit in strong["dropped"]) / 8
    print(f"{knockoffs}: of 8 cut, not noise {false:.0%}; by |gamma| {by_gain:.0%}")
    assert false <= 0.25 < by_gain


def test_a_pruned_finetuned_and_rounded_network_is_stored_and_read_back_equal(
    learned: TinyResidual, tmp_path: Path
) -> None:
    finetune = {"finetune": {"training": {"epochs": 2, "norm_batches": 4}}}
    before = {name: value.clone() for name, value in learned.state_dict().items()}
    rounding = {"rtn": {"scheme": "w8a16"}}
    result = pruned(learned, finetune, rounding, rate=0.3, task=TrainingTask(batches=batches(20)))
    assert accuracy(result.model) > 0.8
    assert isinstance(result.model.second_norm, ScatteredBatchNorm)
    assert result.model.first_norm.num_features == 6
    assert all(torch.equal(value, before[name]) for name, value in learned.state_dict().items())
    result.save(tmp_path / "out")
    loaded = goldstick.load(tmp_path / "out", model=TinyResidual())
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(loaded(x), result.model(x))
    (pruning,) = result.report.pruning
    assert pruning["parameters"][1] < pruning["parameters"][0] == sum(v.numel() for v in learned.parameters())
    assert pruning["macs"][1] < 0.75 * pruning["macs"][0]
    assert all(seconds > 0 for seconds in pruning["seconds"])
    assert [layer["name"] for layer in pruning["layers"]] == ["first", "second", "hidden"]
    assert all(len(layer["scores"]) == layer["units"] for layer in pruning["layers"])
    assert "classifier" in pruning["refused"]
    records = {record.name: record for record in result.report.layers}
    assert records["first.weight"].shape == (6, 8, 3, 3)
    assert records["first.weight"].notes["shape_before"] == "8×8×3×3"
    assert records["first.weight"].bytes_after < records["first.weight"].bytes_before / 4
    assert [one["stage"] for one in result.report.training] == ["scop", "finetune"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "multiplications" in page and "Scores" in page


def test_a_transformer_s_heads_and_channels_are_pruned_quantized_and_read_back_with_a_config_that_says_so(
    tmp_path: Path,
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = FAMILIES["llama_mha"]()
        data = [{"input_ids": torch.randint(0, 128, (4, 16))} for _ in range(2)]
    recipe = {
        "stages": [
            {"scop": {"rate": 0.5, "training": {"epochs": 1, "norm_batches": 0}}},
            {"finetune": {"training": {"steps": 1}}},
            {"rtn": {"scheme": "w4a16-g16"}},
        ]
    }
    result = goldstick.apply(model, recipe, data=data)
    config: Any = result.model.config
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (2, 2, 16)
    assert config.intermediate_size == 64
    result.save(tmp_path / "out")  # which proves the outputs in a fresh process
    loaded = goldstick.load(tmp_path / "out")
    with torch.no_grad():
        torch.testing.assert_close(loaded(**data[0]).logits, result.model(**data[0]).logits, rtol=1e-4, atol=1e-3)
    assert goldstick.Recipe.load(recipe).stages[0] == goldstick.Recipe.load(result.report.recipe).stages[0]
    assert model.config.intermediate_size == 128


def test_a_multiple_leaves_what_a_group_size_divides() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = FAMILIES["llama_mha"]()
        data = [{"input_ids": torch.randint(0, 128, (4, 16))} for _ in range(2)]

    def widths(multiple: int) -> list[int]:
        scop = {"rate": 0.3, "criterion": "random", "multiple": multiple}
        stages = [{"scop": scop}, {"rtn": {"scheme": "w4a16-g32"}}]
        result = goldstick.apply(model, {"stages": stages}, data=data)
        found = {
            name: module.in_features for name, module in result.model.named_modules() if hasattr(module, "in_features")
        }
        return [width for name, width in found.items() if name.endswith(("down_proj", "o_proj"))]

    # 128 hidden channels and 4 heads of 16: a third of them goes, but 96 and, two by two, all heads are left.
    assert widths(32) == [64, 96] * 2
    with pytest.raises(RecipeError, match="divide"):
        widths(1)


@pytest.mark.parametrize("criterion", ["knockoffs", "taylor", "magnitude", "random"])
@pytest.mark.parametrize("kind", ["parameters", "macs"])
def test_a_share_to_be_left_is_met_and_not_by_much_more(learned: TinyResidual, criterion: str, kind: str) -> None:
    task = TrainingTask(batches=batches(2))
    chosen = {"rate": None, kind: 0.6, "scope": "global", "ends": True}
    (pruning,) = pruned(learned, task=task, criterion=criterion, **chosen).report.pruning
    assert 0.45 < pruning[kind][1] / pruning[kind][0] <= 0.6


def test_taylor_scores_are_the_squared_change_of_the_loss_to_first_order() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Concatenation().double()
    data = [(images.double(), classes) for images, classes in batches(2)]
    (pruning,) = pruned(model, criterion="taylor", keep={"left": 2}, task=TrainingTask(batches=data)).report.pruning
    found = {layer["name"]: layer["scores"] for layer in pruning["layers"]}
    step = 1e-5
    for path, first in (("left", 0), ("right", 4)):  # which ``both`` reads side by side
        for unit, score in enumerate(found[path]):
            slopes = []
            for images, classes in data:
                losses = []
                for change in (1 + step, 1 - step):
                    scaled = copy.deepcopy(model)
                    with torch.no_grad():
                        scaled.both.weight[:, first + unit] *= change
                        losses.append(nn.functional.cross_entropy(scaled(images), classes))
                slopes.append(float(losses[0] - losses[1]) / (2 * step))
            assert score == pytest.approx(sum(slope**2 for slope in slopes) / 2, rel=1e-3, abs=1e-9)
    assert {layer["name"]: layer["kept"] for layer in pruning["layers"]} == {"left": 2, "right": 6, "both": 8}
    assert all(parameter.requires_grad for parameter in model.parameters())
    gone = next(layer["dropped"] for layer in pruning["layers"] if layer["name"] == "left")
    assert gone == sorted(sorted(range(4), key=found["left"].__getitem__)[:2])


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        ({"nowhere": 2}, "no channels of that name can be cut. Those that can: left, right, both"),
        ({"left": 5}, "5 channels of left, which has 4"),
        ({"left": 0}, "1 or more"),
    ],
)
def test_numbers_to_keep_that_cannot_be_are_refused(keep: dict[str, int], words: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Concatenation()
    with pytest.raises(RecipeError, match=words):
        pruned(model, criterion="magnitude", keep=keep, task=TrainingTask(batches=batches(2)))


def test_numbers_to_keep_stand_in_the_place_of_a_share() -> None:
    with pytest.raises(RecipeError, match="one of rate, parameters, macs and keep"):
        goldstick.Recipe.load({"stages": [{"scop": {"keep": {"a": 1}, "macs": 0.5}}]})


def test_equal_runs_cut_the_same(learned: TinyResidual) -> None:
    first, second = (pruned(learned, rate=0.5).model.state_dict() for _ in range(2))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_caller_s_own_knockoffs_are_used(learned: TinyResidual) -> None:
    made: list[Tensor] = []
    (shuffled,) = pruned(learned, rate=0.5, task=TrainingTask(batches=batches(1))).report.pruning
    assert 0 < shuffled["knockoff_correlation"] < 1

    def own(real: Tensor) -> Tensor:
        made.append(real)
        return torch.zeros_like(real)

    result = pruned(learned, knockoffs="given", task=TrainingTask(batches=batches(2), knockoffs=own))
    assert len(made) >= 4
    assert result.report.pruning[0]["knockoff_correlation"] == 0


def test_gates_in_a_transformer_encoder_of_torch_learn() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inner = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0)
        model = nn.Sequential(inner, nn.Flatten(), nn.Linear(24, 4))
        data = [(torch.randn(8, 3, 8), torch.arange(8) % 4) for _ in range(2)]
    options = {"rate": 0.5, "ends": True, "targets": {"include": ["*linear1"]}}
    (layer,) = pruned(model, task=TrainingTask(batches=data), **options).report.pruning[0]["layers"]
    assert (layer["name"], layer["kept"]) == ("0.linear1", 6)
    assert max(map(abs, layer["scores"])) > 0


@pytest.mark.parametrize("knockoffs", ["shuffle", "gaussian", "given"])
def test_a_batch_of_one_sample_teaches_nothing_where_it_has_no_knockoff(knockoffs: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))
        data = [(torch.randn(count, 5), torch.arange(count) % 4) for count in (1, 8, 1)]
    options: dict[str, Any] = {"rate": 0.5, "knockoffs": knockoffs}
    (pruning,) = pruned(model, task=TrainingTask(batches=data, knockoffs=torch.zeros_like), **options).report.pruning
    assert pruning["knockoff_correlation"] >= 0
    alone = TrainingTask(batches=data[:1] * 2, knockoffs=torch.zeros_like)
    if knockoffs == "shuffle":
        with pytest.raises(DataError, match="Every batch is of one sample"):
            pruned(model, task=alone, **options)
        gate = ChannelGate(nn.Linear(5, 6), range(6), 6, reads=False)
        nn.functional.cross_entropy(KnockoffModel(gate, None)(data[0][0]), data[0][1]).backward()  # type: ignore[no-untyped-call]
        assert gate.beta.grad is not None and gate.beta.grad.abs().max() < 1e-6
    elif knockoffs == "given":
        assert pruned(model, task=alone, **options).report.pruning[0]["knockoff_correlation"] == 0


def test_what_has_no_meaning_is_refused(learned: TinyResidual) -> None:
    for options in (
        {"rate": None},
        {"rate": 1.0},
        {"macs": 0.5, "parameters": 0.5},
        {"rate": None, "macs": 0.0},
        {"multiple": 0},
    ):
        with pytest.raises(RecipeError):
            goldstick.Recipe.load({"stages": [{"scop": options}]})
    task = TrainingTask(batches=batches(1))
    with pytest.raises(RecipeError, match="needs the function"):
        pruned(learned, knockoffs="given", task=task)
    with pytest.raises(RecipeError, match="prune before it"):
        goldstick.apply(learned, {"stages": ["slb", "scop"]}, training=task)
    with pytest.raises(RecipeError, match="matches"):
        pruned(learned, targets={"include": ["nothing"]}, task=task)
    with pytest.raises(StructureError, match=r"No channel can be cut\. classifier"):
        pruned(learned, targets={"include": ["classifier"]}, task=task)
    with pytest.raises(DataError, match="no batch"):
        pruned(learned, task=TrainingTask(batches=[]))
