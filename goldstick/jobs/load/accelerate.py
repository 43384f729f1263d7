"""Accelerate: a model that another library loaded quantized, on goldstick's modules and kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from goldstick import surgery
from goldstick.errors import FormatError, UsageError
from goldstick.formats.loaded_modules import HeldLayer, held_layer
from goldstick.formats.site_table import SiteTable, write_table
from goldstick.nn import PackedWeight, QuantizedLinear


def accelerate(model: nn.Module) -> dict[str, str]:
    """Let a loaded model run on goldstick's packed layers, in place.

    For models that transformers loaded with a checkpoint's own package: linear layers of compressed-tensors, packed or
    decompressed by their first forward pass, and of GPTQModel (GPTQ and AWQ) before it. Codes, scales and zeros stay
    what they are, act-order too. Float layers are left alone, and everything is if one layer cannot be read. Afterwards
    the model can no longer be trained or saved by transformers: its checkpoint is the one it was loaded from.

    Args:
        model: The model; a transformers model, or any module that holds such layers.

    Returns:
        Path → scheme of every layer that was replaced.

    Raises:
        UsageError: There is nothing to replace.
        FormatError: A layer holds what goldstick does not run, or no longer holds its codes; the message names it.
        StructureError: The model is itself such a layer.
    """
    dtype = next((value.dtype for value in model.parameters() if value.dtype.is_floating_point), torch.float32)
    found: dict[str, HeldLayer] = {}
    for name, module in model.named_modules():
        try:
            held = held_layer(module, dtype)
        except FormatError as error:
            raise FormatError(f"{name} cannot be accelerated: {error} Nothing was changed.") from error
        if held is not None:
            found[name] = held
    if not found:
        raise UsageError(_nothing_to_replace(model))
    for name, held in found.items():
        new = QuantizedLinear(
            held.tensor, held.scheme, held.bias, input_scale=held.input_scale, input_zero=held.input_zero
        )
        surgery.replace(model, name, new.train(model.get_submodule(name).training))
    _now_goldsticks(model, {name: held.scheme for name, held in found.items()})
    return {name: held.scheme.label for name, held in found.items()}


def _nothing_to_replace(model: nn.Module) -> str:
    if any(isinstance(module, PackedWeight) for module in model.modules()):
        return "The model runs on goldstick's packed layers already."
    return (
        f"This {type(model).__name__} holds no quantized layers of compressed-tensors or GPTQModel. If its checkpoint "
        "is quantized, it was dequantized while it was loaded: use goldstick.load(directory). To quantize a float "
        "model, use goldstick.apply(model, recipe)."
    )


def _now_goldsticks(model: Any, schemes: dict[str, Any]) -> None:
    """Take the model from its former library: no hook that decompresses, no saving of what is no longer there."""
    hook = getattr(model, "ct_decompress_hook", None)
    if hook is not None:
        hook.remove()
        del model.ct_decompress_hook
    if getattr(model, "hf_quantizer", None) is not None:
        from goldstick.hf.quantizer import METHOD, GoldstickConfig, GoldstickQuantizer

        table = write_table(METHOD, SiteTable(schemes=schemes))
        model.hf_quantizer = GoldstickQuantizer(GoldstickConfig(**table), pre_quantized=True)
