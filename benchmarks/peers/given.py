"""What a comparison gives a tool: the model, its calibration data, and which layers count. Reads no goldstick.

A specification has ``windows`` (safetensors: calibration, int64 [samples, seq_len]) or ``batches`` (a list of keyword
arguments of the forward, as torch saves it). Without ``class`` the model is a causal language model, without ``layers``
all linear layers of its blocks are to be quantized.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

_FLOAT = ("lm_head",)


def load_model(spec: dict[str, Any], dtype: Any = "auto") -> Any:
    """The model."""
    return getattr(transformers, spec.get("class", "AutoModelForCausalLM")).from_pretrained(spec["model"], dtype=dtype)


def load_processor(spec: dict[str, Any]) -> dict[str, Any]:
    """Its processor, as a tool takes it beside the tokenizer; nothing for a model of text."""
    found = transformers.AutoProcessor.from_pretrained(spec["model"])
    return {"processor": found} if isinstance(found, transformers.ProcessorMixin) else {}


def batches(spec: dict[str, Any]) -> list[dict[str, Tensor]]:
    """Keyword arguments of its forward."""
    if spec.get("batches"):
        found: list[dict[str, Tensor]] = torch.load(spec["batches"], weights_only=True)
        return found
    ids = load_file(spec["windows"])["calibration"]
    return [
        {"input_ids": rows, "attention_mask": rows.new_ones(rows.shape)}
        for rows in ids.split(spec.get("batch_size", 8))
    ]


def to_quantize(spec: dict[str, Any], model: nn.Module) -> list[str]:
    """Names of the layers that are to be quantized."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return list(spec["layers"]) if spec.get("layers") else [name for name in names if name not in _FLOAT]


def float_layers(spec: dict[str, Any], model: nn.Module) -> list[str]:
    """Names of the linear layers that are to stay as they are."""
    wanted = set(to_quantize(spec, model))
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name not in wanted]


def untouched(before: dict[str, Tensor], after: dict[str, Tensor], layers: Sequence[str]) -> list[str]:
    """Layers whose stored weights are equal."""
    names = [f"{layer}.weight" for layer in layers]
    return [name for name in names if name not in after or torch.equal(before[name], after[name])]
