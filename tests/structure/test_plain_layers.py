"""Layers of subclasses are sites only where they compute what their class is known for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
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
from goldstick.errors import StructureError
from goldstick.structure.network import Network
from goldstick.structure.plain_layers import computes_plainly
from tests.support.tiny_models import GROUPED, sample_inputs


class Longhand(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        found = x @ self.weight.T
        return found if self.bias is None else found + self.bias


class Padded(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight, self.bias)


class Tripled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


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
    (nn.Linear(8, 100), True),
    (nn.Conv2d(4, 6, 3, groups=2), True),
    (Longhand(8, 100), True),
    (Longhand(8, 100, bias=False), True),
    (Padded(4, 6, (3, 1), stride=2, padding=1, dilation=2, groups=2), True),
    (Tripled(8, 100), False),
    (Topped(8, 100), False),
    (Standardized(4, 6, 3), False),
    (Failing(8, 100), False),
    (nn.Embedding(8, 8), True),
]


@pytest.mark.parametrize(("layer", "plain"), LAYERS, ids=lambda value: type(value).__name__)
def test_layers_are_tried(layer: nn.Module, plain: bool) -> None:
    weight = layer.weight
    state = torch.get_rng_state()
    assert computes_plainly(layer) is plain
    with torch.device("meta"):  # as it is while transformers loads a model
        assert computes_plainly(layer) is plain
    assert computes_plainly(layer.to("meta")) is plain
    assert computes_plainly(layer.to(torch.bfloat16)) is plain
    assert layer.training and weight is not None
    assert torch.equal(torch.get_rng_state(), state)


def test_a_layer_that_computes_more_stays_float_and_the_report_says_so() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), Tripled(32, 8))
    x = torch.randn(4, 32)
    result = goldstick.apply(model, {"stages": [{"rtn": {"scheme": "w8a16"}}]})
    assert isinstance(result.model[3], Tripled)
    reasons = {layer.name: layer.reason for layer in result.report.layers}
    assert "Tripled computes more than W·x + b" in reasons["3.weight"]
    torch.testing.assert_close(result.model(x), model(x), rtol=0.1, atol=0.05)


def test_where_most_layers_compute_more_it_is_an_error() -> None:
    with pytest.raises(StructureError, match=r"layers that compute more than W·x \+ b \(0\.weight\)"):
        goldstick.apply(nn.Sequential(Tripled(32, 32)), {"stages": [{"rtn": {"scheme": "w8a16"}}]})


def test_standardized_convolutions_are_no_sites() -> None:
    config = BitConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_groups=2)
    with torch.device("meta"):
        model = BitForImageClassification(config)
    assert [site.name for site in Network(model).sites] == ["classifier.1"]


def test_falcon_s_own_linear_layers_are_sites() -> None:
    with torch.device("meta"):
        model = FalconForCausalLM(
            FalconConfig(vocab_size=128, hidden_size=64, num_hidden_layers=1, num_attention_heads=4)
        )
    assert "transformer.h.0.mlp.dense_4h_to_h" in Network(model).by_name


def test_routers_that_are_linear_layers_stay_float_and_the_model_runs() -> None:
    model = PhimoeForCausalLM(PhimoeConfig(**GROUPED, num_local_experts=4)).eval()
    result = goldstick.apply(model, {"stages": [{"rtn": {"scheme": "w8a16"}}]})
    with torch.no_grad():
        assert torch.isfinite(result.model(**sample_inputs(model)).logits).all()
    assert not any(".router" in layer.name and layer.scheme for layer in result.report.layers)


def test_experts_that_are_multiplied_all_at_once_are_refused() -> None:
    config = Llama4TextConfig(**GROUPED, head_dim=16, num_local_experts=4, interleave_moe_layer_step=1)
    with torch.device("meta"):
        model = Llama4ForCausalLM(config)
    assert not any(".experts" in site.name or site.name.endswith("router") for site in Network(model).sites)
    with pytest.raises(StructureError, match=r"experts\.gate_up_proj"):
        goldstick.apply(model, {"stages": [{"rtn": {"scheme": "w8a16"}}]})
