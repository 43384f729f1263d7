"""apply_fold on every kind of producer and consumer, against the product written out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from goldstick.core.edits import Fold
from goldstick.errors import StructureError
from goldstick.structure import Network, Site
from goldstick.structure.probe.fold import apply_fold

CHANNELS = 8


class OffsetNorm(nn.Module):
    """Gemma's way: x / rms(x) · (1 + w)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CHANNELS) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x * x.pow(2).mean(-1, keepdim=True).rsqrt() * (1 + self.weight)


class Experts(nn.Module):
    """Three experts that all answer, their weights fused."""

    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        self.is_transposed = transposed
        self.gate_up_proj = nn.Parameter(torch.randn(3, *((CHANNELS, 16) if transposed else (16, CHANNELS))))
        self.down_proj = nn.Parameter(torch.randn(3, CHANNELS, CHANNELS))
        self.gate_up_proj_bias = nn.Parameter(torch.randn(3, 16))

    def forward(self, x: Tensor) -> Tensor:
        gate_up, down = self.gate_up_proj, self.down_proj
        if self.is_transposed:
            gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
        inner = torch.einsum("...i,eoi->...eo", x, gate_up) + self.gate_up_proj_bias
        gate, up = inner.chunk(2, dim=-1)
        return torch.einsum("...ei,eoi->...o", torch.sigmoid(gate) * up, down)


class Pair(nn.Module):
    def __init__(self, producer: nn.Module, consumer: nn.Module) -> None:
        super().__init__()
        self.producer = producer
        self.consumer = consumer

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.consumer(self.producer(x))
        return result


def random_parameters(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.eval()


def site_of(model: nn.Module, name: str) -> Site:
    return Network(model).by_name[name]


def random_scale(channels: int = CHANNELS) -> Tensor:
    return torch.exp2(torch.rand(channels) * 2 - 1)


PRODUCERS: dict[str, Callable[[], nn.Module]] = {
    "layer norm with a shift": lambda: nn.LayerNorm(CHANNELS),
    "rms norm": lambda: nn.RMSNorm(CHANNELS),
    "norm with 1 + weight": OffsetNorm,
    "linear with a bias": lambda: nn.Linear(CHANNELS, CHANNELS),
    "transposed linear": lambda: Conv1D(CHANNELS, CHANNELS),
}
CONSUMERS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "linear": ("consumer", lambda: nn.Linear(CHANNELS, 5)),
    "transposed linear": ("consumer", lambda: Conv1D(5, CHANNELS)),
    "experts": ("consumer.gate_up_proj", lambda: Experts(transposed=False)),
    "transposed experts": ("consumer.gate_up_proj", lambda: Experts(transposed=True)),
}


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_fold_keeps_the_output_and_divides_what_flows_between(producer: str, consumer: str) -> None:
    name, build = CONSUMERS[consumer]
    model = random_parameters(Pair(PRODUCERS[producer](), build()))
    x, scale = torch.randn(6, CHANNELS), random_scale()
    between, output = model.producer(x), model(x)
    fold = Fold(producer="producer", consumers=(name,), scale=scale, unit_offset=producer == "norm with 1 + weight")
    apply_fold(model, fold, [site_of(model, name)])
    torch.testing.assert_close(model.producer(x), between / scale)
    torch.testing.assert_close(model(x), output)


@pytest.mark.parametrize("groups", [1, 2, CHANNELS])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", ["convolution", "batch norm"])
def test_convolutions_fold_in_any_grouping_and_memory_format(
    groups: int, memory_format: torch.memory_format, kind: str
) -> None:
    producer = nn.Conv2d(3, CHANNELS, 3) if kind == "convolution" else nn.BatchNorm2d(CHANNELS)
    model = random_parameters(Pair(producer, nn.Conv2d(CHANNELS, 2 * CHANNELS, 3, groups=groups)))
    model.to(memory_format=memory_format)
    x, scale = torch.randn(2, 3 if kind == "convolution" else CHANNELS, 7, 7), random_scale()
    between, output = model.producer(x), model(x)
    fold = Fold(producer="producer", consumers=("consumer",), scale=scale)
    apply_fold(model, fold, [site_of(model, "consumer")])
    torch.testing.assert_close(model.producer(x), between / scale[:, None, None])
    torch.testing.assert_close(model(x), output, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_upper_half_of_fused_experts_folds_into_their_down_projection(transposed: bool) -> None:
    model = nn.ModuleDict({"experts": random_parameters(Experts(transposed=transposed))})
    x = torch.randn(6, CHANNELS)
    output = model["experts"](x)
    fold = Fold(
        producer="experts.gate_up_proj",
        consumers=("experts.down_proj",),
        scale=random_scale(CHANNELS),
        first_channel=CHANNELS,
    )
    apply_fold(model, fold, [site_of(model, "experts.down_proj")])
    torch.testing.assert_close(model["experts"](x), output, rtol=1e-4, atol=1e-4)


def test_a_fold_computes_in_float32_and_stores_in_the_parameters_dtype() -> None:
    model = random_parameters(Pair(nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 5))).to(torch.bfloat16)
    weight, gain, scale = model.consumer.weight.float(), model.producer.weight.float(), random_scale()
    fold = Fold(producer="producer", consumers=("consumer",), scale=scale)
    apply_fold(model.get_submodule, fold, [site_of(model, "consumer")])
    assert torch.equal(model.consumer.weight, (weight * scale).to(torch.bfloat16))
    assert torch.equal(model.producer.weight, (gain / scale).to(torch.bfloat16))


def test_a_fold_back_by_the_inverse_scale_restores_the_weights() -> None:
    model = random_parameters(Pair(nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 5)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scale, sites = random_scale(), [site_of(model, "consumer")]
    for factor in (scale, 1 / scale):
        apply_fold(model, Fold(producer="producer", consumers=("consumer",), scale=factor), sites)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name])


@pytest.mark.parametrize(
    ("producer", "scale", "first", "told"),
    [
        (nn.LayerNorm(9), torch.ones(9), 0, "consumer takes 8 channels"),
        (nn.Linear(4, 7), torch.ones(8), 0, "producer puts out 7 channels"),
        (nn.Linear(4, 16), torch.ones(8), 9, "from 9 on"),
        (nn.Linear(4, 16), torch.ones(8), -1, "from -1 on"),
        (nn.LayerNorm(8), -torch.ones(8), 0, "positive"),
        (nn.LayerNorm(8), torch.full((8,), float("nan")), 0, "positive"),
        (nn.LayerNorm(8), torch.ones(8, 1), 0, "vector"),
        (nn.ReLU(), torch.ones(8), 0, "cannot absorb a scale"),
        (nn.Embedding(4, 8), torch.ones(8), 0, "embedding"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_changes_nothing(
    producer: nn.Module, scale: Tensor, first: int, told: str
) -> None:
    model = Pair(producer, nn.Linear(CHANNELS, 5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fold = Fold(producer="producer", consumers=("consumer",), scale=scale, first_channel=first)
    with pytest.raises(StructureError, match=told) as caught:
        apply_fold(model, fold, [site_of(model, "consumer")])
    assert "producer" in str(caught.value)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_consumers_other_than_those_of_the_fold_are_refused() -> None:
    model = Pair(nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 5))
    fold = Fold(producer="producer", consumers=("elsewhere",), scale=torch.ones(CHANNELS))
    with pytest.raises(StructureError, match="elsewhere"):
        apply_fold(model, fold, [site_of(model, "consumer")])
