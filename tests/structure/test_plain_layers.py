"""What a layer's forward does with its weight is followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    BitConfig,
    BitForImageClassification,
    FalconConfig,
    FalconForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    PhimoeConfig,
    PhimoeForCausalLM,
)

import goldstick
from goldstick.structure.network import Network
from goldstick.structure.plain_layers import Reading, products_in, reading_of
from tests.support.tiny_models import GROUPED, sample_inputs


class Longhand(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        found = x @ self.weight.T
        return found if self.bias is None else found + self.bias


class Padding(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, [0, 1, 0, 1]), self.weight, self.bias, self.stride)


class Tripled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class Normed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.normalize(x, dim=-1))


class Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + super().forward(-x)


class Topped(nn.Linear):
    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return super().forward(x).topk(2)


class Standardized(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight - weight.mean((1, 2, 3), keepdim=True), bias)


class Failing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("not in this way")


LAYERS = [
    (nn.Linear(8, 100), Reading.INPUT, False),
    (nn.Conv2d(4, 6, 3, groups=2), Reading.INPUT, False),
    (nn.Conv1d(4, 6, 3), Reading.INPUT, False),
    (nn.Embedding(8, 8), Reading.INPUT, False),
    (Longhand(8, 100), Reading.INPUT, False),
    (Longhand(8, 100, bias=False), Reading.INPUT, False),
    (Tripled(8, 100), Reading.INPUT, False),
    (Padding(4, 6, (3, 1), stride=2), Reading.PRODUCT, False),
    (Normed(8, 100), Reading.PRODUCT, False),
    (Twice(8, 100), Reading.OWN, False),
    (Topped(8, 100), Reading.INPUT, True),
    (Standardized(4, 6, 3), Reading.OWN, False),
    (Failing(8, 100), Reading.OWN, False),
]


@pytest.mark.parametrize(("layer", "reading", "chooses"), LAYERS, ids=lambda value: type(value).__name__)
def test_layers_are_followed(layer: nn.Module, reading: Reading, chooses: bool) -> None:
    expected = reading, chooses
    weight = layer.weight
    state = torch.get_rng_state()
    assert reading_of(layer) == expected
    with torch.device("meta"):  # as it is while transformers loads a model
        assert reading_of(layer) == expected
    assert reading_of(layer.to("meta")) == expected
    assert reading_of(layer.to(torch.bfloat16)) == expected
    assert layer.training and weight is not None
    assert torch.equal(torch.get_rng_state(), state)


def test_a_forward_of_one_layer_is_followed_too() -> None:
    layer = nn.Linear(8, 8)
    layer.forward = lambda x: x @ layer.weight.T @ layer.weight.T  # type: ignore[method-assign]
    assert reading_of(layer) == (Reading.OWN, False)


@pytest.mark.parametrize("padding", [0, 1, "same", "valid"])
def test_the_products_of_a_run_are_those_with_the_weight(padding: int | str) -> None:
    x, weight, other = torch.randn(1, 4, 9), torch.randn(6, 4, 3), torch.randn(6, 4, 3)

    def run() -> Tensor:
        return F.conv1d(x, other, padding=padding) + F.conv1d(x, weight, None, 1, padding=padding)

    products, output = products_in(run, weight)
    assert torch.equal(output, run())
    (found,) = products
    assert found.of is x
    again = F.conv1d(found.input, weight, None, found.stride, found.padding, found.dilation, found.groups)
    assert torch.equal(again, F.conv1d(x, weight, padding=padding))


def test_standardized_convolutions_are_rounded_and_the_report_says_that_no_data_were_used() -> None:
    config = BitConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_groups=2, image_size=64)
    model = BitForImageClassification(config).eval()
    images = {"pixel_values": torch.randn(2, 3, 64, 64)}
    result = goldstick.apply(model, {"stages": [{"gptq": {"scheme": "w8a16"}}]}, data=[images])
    reasons = {layer.name: layer.reason for layer in result.report.layers}
    assert reasons["bit.embedder.convolution.weight"] == (
        "its forward reads the numbers of the weight: rounded without data"
    )
    with torch.no_grad():
        mine, theirs = (one(**images).logits for one in (result.model, model))
    assert (mine - theirs).norm() < 0.1 * theirs.norm()


def test_falcon_s_own_linear_layers_are_products() -> None:
    with torch.device("meta"):
        model = FalconForCausalLM(
            FalconConfig(vocab_size=128, hidden_size=64, num_hidden_layers=1, num_attention_heads=4)
        )
    assert Network(model).by_name["transformer.h.0.mlp.dense_4h_to_h"].reading is Reading.INPUT


def test_routers_that_are_linear_layers_stay_float_and_the_model_runs() -> None:
    model = PhimoeForCausalLM(PhimoeConfig(**GROUPED, num_local_experts=4)).eval()
    result = goldstick.apply(model, {"stages": [{"rtn": {"scheme": "w8a16"}}]})
    with torch.no_grad():
        assert torch.isfinite(result.model(**sample_inputs(model)).logits).all()
    routers = [layer for layer in result.report.layers if layer.name.endswith("router.weight")]
    assert routers and all(layer.scheme is None for layer in routers)
    assert {layer.reason for layer in routers} == {"router: left alone unless an include names it"}


def test_experts_that_are_multiplied_all_at_once_are_read_all_at_once(tmp_path: Path) -> None:
    config = Llama4TextConfig(**GROUPED, head_dim=16, num_local_experts=4, interleave_moe_layer_step=1)
    model = Llama4ForCausalLM(config).eval()
    inputs = sample_inputs(model)
    result = goldstick.apply(model, {"stages": [{"gptq": {"scheme": "w8a16"}}]}, data=[inputs])
    records = {layer.name: layer for layer in result.report.layers}
    assert "router: left alone" in str(records["model.layers.0.feed_forward.router.weight"].reason)
    assert records["model.layers.0.feed_forward.experts.gate_up_proj"].scheme == "w8a16-channel"
    loaded = goldstick.load(result.save(tmp_path / "out"))
    with torch.no_grad():
        expected = result.model(**inputs).logits
        assert torch.equal(loaded(**inputs).logits, expected)
        assert (expected - model(**inputs).logits).norm() < 0.1 * expected.norm()
