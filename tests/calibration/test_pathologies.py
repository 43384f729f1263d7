"""Weights and inputs that no model should have: a clear error, or a finite result no worse than rounding to nearest."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.core.counts import counted
from goldstick.errors import QuantizationError
from goldstick.jobs.save.result import Result
from goldstick.report import LayerRecord
from tests.support.tiny_models import FAMILIES, VOCABULARY

WIDTH = 32
WEIGHTS_ONLY, BOTH = "w4a16-g16", "w8a8-dynamic"
STAGES: dict[str, list[dict[str, Any]]] = {
    "rtn": [{"rtn": {"scheme": WEIGHTS_ONLY}}],
    "imatrix": [{"rtn": {"scheme": WEIGHTS_ONLY, "range_search": "imatrix"}}],
    "gptq": [{"gptq": {"scheme": WEIGHTS_ONLY}}],
    "awq": [{"awq": {"scheme": WEIGHTS_ONLY, "grid": 4}}],
    "awq-gptq": [{"awq": {"quantize": False, "grid": 4}}, {"gptq": {"scheme": WEIGHTS_ONLY}}],
    "smoothquant-gptq": [{"smoothquant": {}}, {"gptq": {"scheme": BOTH}}],
}
CALIBRATED = [name for name in STAGES if name != "rtn"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Layers this small lose more to waking threads than they win."""
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    monkeypatch.setattr("goldstick.jobs.save.result.structure_of", lambda _: {})  # of no interest here
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Block(nn.Module):
    """A residual block in which no token meets another."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Two of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.requires_grad_(False)

    def forward(self, input: Tensor) -> Tensor:
        for block in self.blocks:
            input = block(input)
        return input


def inputs(rows: int = 4, tokens: int = 128) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(1, tokens, WIDTH, generator=generator) for _ in range(rows)]


def block(model: Model, number: int) -> Any:
    return model.blocks[number]


def quantized(model: nn.Module, name: str, data: list[Tensor]) -> Result:
    batches = [{"input": x} for x in data] if name != "rtn" else None
    return goldstick.apply(model, {"stages": STAGES[name]}, data=batches)


def records(result: Result) -> dict[str, LayerRecord]:
    return {layer.name.removesuffix(".weight"): layer for layer in result.report.layers if layer.scheme}


def group_error(float_model: Model, result: Result, data: list[Tensor]) -> float:
    """Squared error of what the first layer gives, its norm included, which may have taken a scale."""
    clean = [x[torch.isfinite(x).all(-1)] for x in data]
    total = 0.0
    for x in clean:
        first, second = block(float_model, 0), block(result.model, 0)  # type: ignore[arg-type]
        total += float((second.up(second.norm(x)) - first.up(first.norm(x))).double().square().sum())
    return total


def check(model: Model, name: str, data: list[Tensor]) -> Result:
    """Quantize, and look at what every pathology must leave intact."""
    result = quantized(copy.deepcopy(model), name, data)
    for value in [*result.model.state_dict().values(), result.model(inputs(1)[0])]:
        assert torch.isfinite(value.float()).all()
    rounded = quantized(copy.deepcopy(model), "rtn", data)
    if name == "smoothquant-gptq":
        recipe = {"stages": [{"rtn": {"scheme": BOTH}}]}
        rounded = goldstick.apply(copy.deepcopy(model), recipe)
    assert group_error(model, result, data) <= 1.001 * group_error(model, rounded, data)
    for layer in records(result).values():
        if "output_error" in layer.notes:
            assert layer.notes["output_error"] <= layer.notes["rtn_output_error"]
    return result


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_weight_that_is_not_finite_is_named(name: str, value: float) -> None:
    model = Model()
    block(model, 1).down.weight[5, 6] = value
    with pytest.raises(QuantizationError, match=r"blocks\.1\.down .*NaN or inf|blocks\.1\.down .*not finite"):
        quantized(model, name, inputs())


@pytest.mark.parametrize("name", CALIBRATED)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_few_inputs_that_are_not_finite_are_dropped_and_counted(name: str, value: float) -> None:
    data = inputs()
    data[1][0, 7, 3] = value
    for layer in records(check(Model(), name, data)).values():
        assert (layer.notes["dropped_tokens"], layer.notes["tokens"]) == (1, 4 * 128 - 1)


@pytest.mark.parametrize("name", CALIBRATED)
def test_many_inputs_that_are_not_finite_are_an_error(name: str) -> None:
    data = inputs()
    data[2][0, :7, 3] = torch.nan
    with pytest.raises(QuantizationError, match=r"blocks\.0\.up .*7 of 512 inputs hold NaN or infinity"):
        quantized(Model(), name, data)


@pytest.mark.parametrize("name", CALIBRATED)
def test_channels_that_are_always_zero_are_counted(name: str) -> None:
    model = Model()
    block(model, 0).norm.weight[3:6] = 0
    block(model, 0).norm.bias[3:6] = 0
    found = records(check(model, name, inputs()))
    if name != "imatrix":
        assert found["blocks.0.up"].notes["dead_inputs"] == 3


@pytest.mark.parametrize("name", CALIBRATED)
def test_a_layer_without_any_input_but_zeros_is_rounded_and_says_so(name: str) -> None:
    model = Model()
    block(model, 0).norm.weight.zero_()
    block(model, 0).norm.bias.zero_()
    found = records(check(model, name, inputs()))
    if name != "imatrix":
        assert "the Hessian is zero" in str(found["blocks.0.up"].notes["fallback"])


@pytest.mark.parametrize("name", CALIBRATED)
def test_a_layer_of_zeros_stays_one(name: str) -> None:
    model = Model()
    block(model, 0).up.weight.zero_()
    result = check(model, name, inputs())
    assert not block(result.model, 0).up(torch.ones(1, WIDTH)).any()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CALIBRATED)
def test_channels_that_are_equal_are_no_harm(name: str) -> None:
    model, data = Model(), inputs()
    for number in range(2):
        block(model, number).down.weight[16:] = block(model, number).down.weight[:16]
    check(model, name, [torch.cat([x[..., :16], x[..., :16]], -1) for x in data])


@pytest.mark.parametrize("name", CALIBRATED)
@pytest.mark.parametrize("tokens", [1, 15, 20])
def test_fewer_inputs_than_features_are_rounded_or_no_worse(name: str, tokens: int) -> None:
    found = records(check(Model(), name, inputs(1, tokens)))
    notes = found["blocks.0.up"].notes
    assert notes["tokens"] == tokens
    if tokens < WIDTH / 2 and name != "imatrix":
        assert f"{counted(tokens, 'input')} seen, fewer than 0.5 of {WIDTH}" in str(notes["fallback"])


@pytest.mark.parametrize("name", CALIBRATED)
def test_huge_inputs_do_not_overflow(name: str) -> None:
    """Squares of 1e20 overflow float32; those of the float64 sums do not."""
    model = Model()
    block(model, 1).up.weight.mul_(1e20)
    block(model, 1).down.weight.mul_(1e-20)
    check(model, name, inputs())


@pytest.mark.parametrize("name", CALIBRATED)
def test_inputs_that_overflow_half_precision_are_an_error_that_names_the_remedy(name: str) -> None:
    model = Model().half()
    block(model, 0).up.weight.mul_(60000)
    with pytest.raises(QuantizationError, match=r"blocks\.0\.down .*load the model in bfloat16 or float32"):
        quantized(model, name, [x.half() for x in inputs()])


@pytest.mark.parametrize("name", CALIBRATED)
@pytest.mark.parametrize("outlier", [1e3, 1e30])
def test_a_huge_weight_is_no_harm_to_other_rows(name: str, outlier: float) -> None:
    model = Model()
    block(model, 1).down.weight[0, 0] = outlier
    if outlier < 1e10:
        block(model, 0).up.weight[0, 0] = outlier
    check(model, name, inputs())


@pytest.mark.parametrize("name", [name for name in CALIBRATED if name != "smoothquant-gptq"])
def test_an_expert_of_zeros_is_no_harm(name: str) -> None:
    model: Any = FAMILIES["mixtral"]()
    mixture = model.model.layers[0].mlp
    mixture.experts.gate_up_proj.data[1] = 0
    stages = [
        {kind: {**options, "targets": {"include": ["model.layers.0.mlp.experts.*"]}} for kind, options in stage.items()}
        for stage in STAGES[name]
    ]
    ids = torch.randint(3, VOCABULARY, (2, 48), generator=torch.Generator().manual_seed(1))
    result = goldstick.apply(model, {"stages": stages}, data=[{"input_ids": ids}])
    logits = result.model(input_ids=ids).logits
    assert torch.isfinite(logits).all()
    experts: Any = result.model.model.layers[0].mlp.experts  # type: ignore[union-attr]
    assert not experts.gate_up_proj.quantized_tensor().dequantize()[1].any()
