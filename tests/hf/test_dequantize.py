"""``model.dequantize()``: the float model that a quantized one stands for, which transformers saves and loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import goldstick
from goldstick.errors import StructureError
from goldstick.hf.cache import quantized_cache_of
from goldstick.nn import PackedWeight
from goldstick.surgery import dequantize
from tests.support.other_tools import FOLDER
from tests.support.tiny_models import FAMILIES

pytestmark = pytest.mark.usefixtures("transformers_as_it_was", "proof_here", "reference_backend")

W4: dict[str, Any] = {"rtn": {"scheme": "w4a16-g32"}}
TIED = {"rtn": {"scheme": "w8a16-g32", "targets": {"include": ["*", "@embedding", "@head"]}, "tie": "keep"}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "linear layers": ("llama_gqa", W4),
    "a head on its embedding": ("gpt2", TIED),
    "experts": ("mixtral", W4),
    "layers that store their input first": ("gpt2", W4),
}


def logits(model: Any) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(input_ids=torch.arange(16)[None]).logits
    return found


def saved(family: str, *stages: dict[str, Any], folder: Path) -> Path:
    recipe = {"stages": [*stages], "export": {"format": "native"}}
    return goldstick.apply(FAMILIES[family](), recipe).save(folder)


@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_same_and_is_saved(name: str, tmp_path: Path) -> None:
    family, stage = CASES[name]
    model: Any = AutoModelForCausalLM.from_pretrained(saved(family, stage, folder=tmp_path / "packed"))
    expected = logits(model)
    assert any(isinstance(one, PackedWeight) for one in model.modules())
    float_model: Any = FAMILIES[family]()
    assert model.dequantize() is model
    assert [type(one) for one in model.modules()] == [type(one) for one in float_model.modules()]
    assert set(model.state_dict()) == set(float_model.state_dict())
    assert not model.is_quantized and not hasattr(model.config, "quantization_config")
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-5)
    model.save_pretrained(tmp_path / "float")
    again: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "float")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())
    model(input_ids=torch.arange(16)[None]).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.get_decoder().parameters())


@pytest.mark.parametrize("name", ["gptqmodel-act-order", "llm-compressor-w8a8", "auto-round-w4a16"])
def test_files_of_other_tools_are_dequantized_to_a_dtype(name: str) -> None:
    goldstick.register()
    model: Any = AutoModelForCausalLM.from_pretrained(FOLDER / name, dtype=torch.float32)
    expected = logits(model)
    model.dequantize(torch.float64)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    found = logits(model)  # in which inputs are rounded no more
    assert (found - expected).norm() < (0.2 if "w8a8" in name else 1e-4) * expected.norm()


def test_its_cache_is_float_again_and_an_optimized_model_is_refused(tmp_path: Path) -> None:
    folder = saved("llama_gqa", W4, {"kv_cache": {"mode": "dynamic"}}, folder=tmp_path / "packed")
    model: Any = goldstick.load(folder)
    assert quantized_cache_of(model) is not None
    assert quantized_cache_of(model.dequantize()) is None
    optimized: Any = goldstick.load(folder)
    goldstick.optimize(optimized)
    with pytest.raises(StructureError, match="An optimized model is not dequantized: load it without"):
        optimized.dequantize()


def test_recurrent_layers_and_attention_read_float_weights_again() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"lstm": nn.LSTM(32, 32, 2), "attention": nn.MultiheadAttention(32, 4)}).eval()
    x = torch.randn(5, 2, 32)
    packed: Any = goldstick.apply(model, "rtn-w4a16-g32").model
    expected = packed["lstm"](x)[0], packed["attention"](x, x, x)[0]
    dequantize(packed, torch.float32)
    assert [type(one) for one in packed.modules()] == [type(one) for one in model.modules()]
    assert {name for name, _ in packed.named_parameters()} == {name for name, _ in model.named_parameters()}
    for found, known in zip((packed["lstm"](x)[0], packed["attention"](x, x, x)[0]), expected, strict=True):
        torch.testing.assert_close(found, known)
