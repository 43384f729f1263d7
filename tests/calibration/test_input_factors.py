"""Input smoothing factors: the float function stays, both ways through a block see them, and rounding profits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.calibration.block_loop import BlockLoop
from goldstick.calibration.input_factors import InputMultipliers
from goldstick.calibration.task import Assignment
from goldstick.core.layout import Layout
from goldstick.nn import QuantizedLinear
from goldstick.recipes.recipe import Recipe
from goldstick.recipes.resolve import resolve
from goldstick.structure.network import Network
from tests.support.calibration import batches_for, first_block, uneven
from tests.support.tiny_models import FAMILIES, output_tensor, sample_inputs

pytestmark = pytest.mark.usefixtures("reference_backend")

MULTIPLY: dict[str, list[dict[str, Any]]] = {
    "awq": [{"awq": {"scheme": "w3a16-g32", "grid": 4, "unfoldable": "multiply"}}],
    "awq-gptq": [
        {"awq": {"quantize": False, "grid": 4, "unfoldable": "multiply"}},
        {"gptq": {"scheme": "w3a16-g16"}},
    ],
    "smoothquant": [{"smoothquant": {"unfoldable": "multiply"}}, {"rtn": {"scheme": "w8a8-static"}}],
}


def tasks_of(network: Network) -> list[Assignment]:
    """A task for every linear layer of the blocks."""
    found = resolve(Recipe.load({"stages": [{"rtn": {"scheme": "w8a16"}}]}).stages, network).assignments.values()
    return [
        Assignment(site=one.site, stage=one.stage, scheme=one.scheme, multiplied=True)
        for one in found
        if one.site.layout in (Layout.LINEAR, Layout.TRANSPOSED)
    ]


def some_scale(size: int, seed: int = 3) -> Tensor:
    """Numbers from 1/20 to 20."""
    return 20 ** (2 * torch.rand(size, generator=torch.Generator().manual_seed(seed)) - 1)


@pytest.mark.parametrize("family", ["llama_gqa", "gemma2", "bloom", "gpt2", "phi3"])
def test_multiplying_alone_keeps_the_float_output(family: str) -> None:
    model = FAMILIES[family]().eval()
    inputs = sample_inputs(model)
    before = output_tensor(model, inputs)
    network = Network(model)
    multipliers, tasks = InputMultipliers(network), tasks_of(network)
    assert len(tasks) >= 8
    for seed in (3, 4):  # the second scale is multiplied into the first
        for task in tasks:
            assert multipliers.divide([task], some_scale(task.site.in_features, seed))
    after = output_tensor(model, inputs)
    assert float((after - before).norm() / before.norm()) < 1e-5
    for task in tasks:
        expected = 1 / (some_scale(task.site.in_features, 3).double() * some_scale(task.site.in_features, 4).double())
        torch.testing.assert_close(multipliers.of(task.site).double(), expected, rtol=1e-6, atol=0)
    multipliers.remove()
    assert float((output_tensor(model, inputs) - before).norm() / before.norm()) > 0.1


def one_linear(dtype: torch.dtype) -> tuple[nn.Linear, Network, list[Assignment]]:
    torch.manual_seed(0)
    linear = nn.Linear(64, 8).to(dtype)
    network = Network(nn.Sequential(linear))
    return linear, network, tasks_of(network)


def test_columns_make_up_for_the_multiplier_that_is_stored_and_not_for_the_scale() -> None:
    linear, network, tasks = one_linear(torch.bfloat16)
    weight, scale = linear.weight.detach().clone(), some_scale(64)
    multipliers = InputMultipliers(network)
    assert multipliers.divide(tasks, scale)
    stored = multipliers.of(tasks[0].site)
    assert stored.dtype is torch.bfloat16 and torch.equal(stored, (1 / scale).bfloat16())
    assert torch.equal(linear.weight, (weight.float() * (1 / stored.float())).bfloat16())
    assert not torch.equal(linear.weight, (weight.float() * scale).bfloat16())


@pytest.mark.parametrize("size", [1e4, 1e-4])
def test_a_multiplier_that_16_bits_cannot_hold_is_refused_and_changes_nothing(size: float) -> None:
    linear, network, tasks = one_linear(torch.float16)
    multipliers = InputMultipliers(network)
    large = torch.full((64,), size)
    assert multipliers.divide(tasks, large)
    stored, weight = multipliers.of(tasks[0].site).clone(), linear.weight.detach().clone()
    assert not multipliers.divide(tasks, large)
    assert torch.equal(multipliers.of(tasks[0].site), stored) and torch.equal(linear.weight, weight)


@pytest.mark.parametrize(
    ("family", "name"), [*(("llama_gqa", name) for name in MULTIPLY), ("gpt2", "smoothquant"), ("gemma2", "awq")]
)
def test_batches_one_by_one_give_the_same_multipliers_as_all_together(family: str, name: str) -> None:
    change = uneven if family == "llama_gqa" else None
    together, outputs = first_block(family, MULTIPLY[name], together=True, change=change)
    alone, others = first_block(family, MULTIPLY[name], together=False, change=change)
    assert together.keys() == alone.keys()
    multiplied = 0
    for site, edit in together.items():
        other = alone[site]
        assert torch.equal(edit.tensor.codes, other.tensor.codes) and torch.equal(edit.tensor.scale, other.tensor.scale)
        assert edit.notes == other.notes
        multiplied += any(note.endswith("multiplied") for note in edit.notes)
    assert multiplied, "some group of these models has nothing before it that absorbs a scale"
    assert all(torch.equal(one, other) for one, other in zip(outputs, others, strict=True))


@pytest.mark.parametrize("name", MULTIPLY)
def test_the_finished_model_computes_what_the_sweep_handed_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handed_on: list[list[Tensor]] = []
    real = BlockLoop.advance
    monkeypatch.setattr(BlockLoop, "advance", lambda *args: handed_on.append(list(real(*args))) or handed_on[-1])
    model = FAMILIES["llama_gqa"]()
    batches = batches_for(model)
    stages = [dict(stage) for stage in MULTIPLY[name]]
    if name == "smoothquant":  # the sweep's activations are float
        stages[1] = {"rtn": {"scheme": "w4a16-g32"}}
    result = goldstick.apply(model, {"stages": stages}, data=batches)
    given: list[Tensor] = []
    last: Any = result.model.get_submodule("model.layers.1")
    last.register_forward_hook(lambda module, args, output: given.append(output))
    for batch in batches:
        output_tensor(result.model, batch)
    assert len(handed_on) == 2
    assert all(torch.equal(one, other) for one, other in zip(given, handed_on[-1], strict=True))


def test_awq_rounds_a_layer_better_whose_scale_nothing_absorbs() -> None:
    model = FAMILIES["llama_gqa"]()
    uneven(model)
    batches = batches_for(model)
    errors, notes = {}, {}
    for unfoldable in ("skip", "multiply"):
        recipe = {"stages": [{"awq": {"scheme": "w4a16-g32", "grid": 6, "unfoldable": unfoldable}}]}
        result = goldstick.apply(model, recipe, data=batches)
        name = "model.layers.0.self_attn.o_proj"
        layer, exact = result.model.get_submodule(name), model.get_submodule(name)
        seen: list[Tensor] = []
        layer.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0]))
        for batch in batches:
            output_tensor(result.model, batch)
        x = torch.cat(seen).flatten(0, -2)
        with torch.no_grad():
            errors[unfoldable] = float((layer(x) - exact(x)).square().sum())
        (notes[unfoldable],) = [record.notes for record in result.report.layers if record.name.startswith(name)]
    assert errors["multiply"] < 0.95 * errors["skip"]
    reason = "no norm or linear layer before it can absorb a scale"
    assert notes["multiply"]["awq_multiplied"] == reason and "awq_unbalanced" not in notes["multiply"]
    assert notes["skip"]["awq_unbalanced"] == reason


def test_layers_behind_an_absorber_are_stored_with_ones_and_others_without() -> None:
    model = FAMILIES["llama_gqa"]()
    stage = {"awq": {"quantize": False, "grid": 2, "unfoldable": "multiply", "targets": {"exclude": ["*.mlp.*"]}}}
    recipe = {"stages": [stage, {"rtn": {"scheme": "w4a16-g32"}}]}
    result = goldstick.apply(model, recipe, data=batches_for(model))
    found = {name: one for name, one in result.model.named_modules() if isinstance(one, QuantizedLinear)}
    for name, layer in found.items():
        if ".mlp." in name:
            assert layer.input_multiplier is None
        else:
            assert layer.input_multiplier is not None
            ones = bool((layer.input_multiplier == 1).all())
            assert ones or name.endswith("o_proj"), "q, k and v have a norm before them"


def test_layers_outside_of_blocks_are_multiplied_too() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 16))
    with torch.no_grad():
        model[0].weight[:5] *= 40
    x = torch.randn(400, 64)
    errors = {}
    for unfoldable in ("skip", "multiply"):
        recipe = {"stages": [{"awq": {"scheme": "w3a16-g32", "grid": 4, "unfoldable": unfoldable}}]}
        with torch.no_grad():
            errors[unfoldable] = float((goldstick.apply(model, recipe, data=[{"input": x}]).model(x) - model(x)).norm())
    assert errors["multiply"] < errors["skip"]


class Watched(nn.Module):
    """A block that reads the numbers of the layer whose inputs nothing can scale, before another layer."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.up, self.down, self.out = (nn.Linear(64, 64) for _ in range(3))
        self.gain = nn.Parameter(torch.logspace(-1.5, 1.5, 64))
        self.reads = reads

    def forward(self, x: Tensor) -> Tensor:
        assert self.down.weight.dtype == torch.float32  # no number of it
        found: Tensor = self.down(nn.functional.gelu(self.up(x * self.gain)))
        return self.out(found + torch.einsum("oi,bi->bo", self.down.weight, x) if self.reads else found)


class Stack(nn.Module):
    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Watched(reads) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.parametrize("reads", [True, False])
def test_a_layer_whose_weight_another_module_reads_is_not_multiplied(reads: bool) -> None:
    torch.manual_seed(0)
    model, data = Stack(reads), [torch.randn(16, 64) for _ in range(4)]
    stages = [{"smoothquant": {"unfoldable": "multiply"}}, {"rtn": {"scheme": "w8a8-static"}}]
    result = goldstick.apply(model, {"stages": stages}, data=data)
    for number in range(2):
        down = result.model.get_submodule(f"layers.{number}.down")
        assert isinstance(down, QuantizedLinear) and down.input_multiplier is not None
        assert bool((down.input_multiplier == 1).all()) is reads
        note = next(one for one in result.report.layers if one.name == f"layers.{number}.down.weight").notes
        assert ("other modules read the weight" in str(note.get("smoothquant_unbalanced"))) is reads
    with torch.no_grad():
        before, after = model(data[0]), result.model(data[0])
    assert float((after - before).norm() / before.norm()) < 0.05
