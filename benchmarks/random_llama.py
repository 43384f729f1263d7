"""Llamas of known sizes with random weights, in float or quantized, made in place of gigabytes of downloads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from goldstick import surgery
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.nn import QuantizedLinear

SHAPES: dict[str, dict[str, int]] = {
    "1.1B": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
    "160M": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
    },
}
"""TinyLlama's shape, and that of a Llama of 160 million parameters."""


def config(shape: str, layers: int | None = None) -> LlamaConfig:
    """The config of a shape, perhaps with fewer layers."""
    sizes = SHAPES[shape] | ({} if layers is None else {"num_hidden_layers": layers})
    return LlamaConfig(**sizes, vocab_size=32000, max_position_embeddings=4096, rms_norm_eps=1e-5)


def float_model(given: LlamaConfig, dtype: torch.dtype = torch.float32) -> Any:
    """A model with weights from N(0, 0.02²)."""
    model = _empty(given)
    for path, parameter in list(model.named_parameters()):
        _put(model, path, _random(parameter.shape).to(dtype))
    return model.to(dtype).eval()


def quantized_model(given: LlamaConfig, scheme: str) -> Any:
    """A model whose linear layers, the head too, hold random codes of a scheme; nothing else is ever in memory."""
    model, parsed = _empty(given), Scheme.parse(scheme)
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            surgery.replace(model, path, QuantizedLinear(_codes(module, parsed), parsed))
    for path, parameter in list(model.named_parameters()):
        _put(model, path, _random(parameter.shape))
    return model.eval()


def _empty(given: LlamaConfig) -> Any:
    with torch.device("meta"):
        model = LlamaForCausalLM(given)
    model.model.rotary_emb = type(model.model.rotary_emb)(given)  # its buffers are computed, not random
    return model


def _random(shape: torch.Size) -> Tensor:
    return torch.ones(shape) if len(shape) < 2 else torch.randn(shape).mul_(0.02)


def _put(model: nn.Module, path: str, value: Tensor) -> None:
    owner, _, name = path.rpartition(".")
    setattr(model.get_submodule(owner), name, nn.Parameter(value, requires_grad=False))


def _codes(module: nn.Linear, scheme: Scheme) -> QuantizedTensor:
    bits, rows, columns = scheme.weight.bits, module.out_features, module.in_features
    groups = -(-columns // scheme.weight.group_width(columns))
    step = 0.02 * 2 * 3.5 / 2**bits  # the codes span 3.5 standard deviations either way
    return QuantizedTensor(
        codes=torch.randint(0, 2**bits, (rows, columns), dtype=torch.uint8),
        scale=torch.full((rows, groups), step),
        zero=None,
        grid=scheme.weight,
    )
