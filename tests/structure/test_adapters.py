"""Adapters beside layers, as peft puts them there, stay float, and what they are beside is quantized."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick

RECIPE = "rtn-w4a16-g32"


class Adapted(nn.Module):
    """A layer of peft: the float layer, adapters by name, and what says which of its parts they are."""

    adapter_layer_names = ("lora_A", "lora_B", "lora_embedding_A")

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, layer.out_features, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))
        return found


def adapted(rank: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Adapted(nn.Linear(64, 320), rank), nn.ReLU(), nn.Linear(320, 64)).eval()


@pytest.mark.parametrize("rank", [8, 32])  # groups of 32 do not divide the one
@pytest.mark.parametrize(
    "recipe", [RECIPE, {"stages": [{"rtn": {"scheme": "w4a16-g32", "targets": {"include": ["0*", "2"]}}}]}]
)
def test_adapters_stay_float_and_the_report_says_so(rank: int, recipe: Any) -> None:
    model = adapted(rank)
    found = goldstick.apply(model, recipe)
    records = {record.name: record for record in found.report.layers}
    assert {name for name, record in records.items() if record.scheme} == {"0.base_layer.weight", "2.weight"}
    for part in ("lora_A", "lora_B"):
        kept = found.model.get_parameter(f"0.{part}.default.weight")
        assert torch.equal(kept, model.get_parameter(f"0.{part}.default.weight"))
        assert records[f"0.{part}.default.weight"].reason == "adapter: left alone unless an include names it"


def test_an_adapter_that_is_named_is_quantized() -> None:
    stage = {"rtn": {"scheme": "w4a16-g32", "targets": {"include": ["*lora_A*"]}}}
    found = goldstick.apply(adapted(32), {"stages": [stage]})
    assert [record.name for record in found.report.layers if record.scheme] == ["0.lora_A.default.weight"]


def test_a_head_that_has_an_adapter_is_a_head() -> None:
    model: Any = adapted(8)
    model.get_output_embeddings = lambda: model[0]
    records = {record.name: record.reason for record in goldstick.apply(model, RECIPE, inplace=True).report.layers}
    assert records["0.base_layer.weight"] == "output head: left alone unless an include names it"


@pytest.mark.parametrize("recipe", ["awq-w4a16-g32", "gptq-w4a16-g32"])
def test_what_adapters_add_is_there_behind_calibration(recipe: str) -> None:
    model = adapted(8)
    x = torch.randn(64, 64)
    found = goldstick.apply(model, recipe, data=[x])
    with torch.no_grad():
        assert (found.model(x) - model(x)).norm() < 0.1 * model(x).norm()
