"""Dequantize: float layers in the places of quantized ones, with the numbers that their codes stand for."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from goldstick.errors import StructureError
from goldstick.nn import PackedWeight
from goldstick.nn.embedding import TiedQuantizedLinear
from goldstick.nn.own_names import own_names
from goldstick.nn.parameter import held_parameter, hosting, parameter_of


def dequantize(model: nn.Module, dtype: torch.dtype) -> None:
    """Let every quantized layer be one of the float class that it was made of again, in place.

    What a layer did to its input before it multiplied (an order, multipliers, a transform) is done to the columns of
    its weight; inputs are rounded no more. Layers that shared a packed weight have one each.

    Args:
        model: The model; one layer after the other is changed.
        dtype: Of the weights.

    Raises:
        StructureError: The model was optimized: what was put in the places of its forwards reads packed weights.
    """
    layers = [one for one in model.modules() if isinstance(one, PackedWeight | TiedQuantizedLinear)]
    if any("forward" in one.__dict__ and _is_own(one.__dict__["forward"]) for one in model.modules()) or any(
        getattr(one, "shared", None) is not None or getattr(one, "epilogue", None) is not None for one in layers
    ):
        raise StructureError("An optimized model is not dequantized: load it without optimizing, and dequantize that.")
    layers.sort(key=lambda one: not isinstance(one, TiedQuantizedLinear))  # these read another's weight
    for layer in layers:
        if hasattr(layer, "_made_of"):
            _as_float(layer, dtype)
    for host in list(model.modules()):
        for name, child in list(host._modules.items()):
            if isinstance(child, PackedWeight) and not hasattr(child, "_made_of"):
                _release(host, name, dtype)


def _as_float(layer: Any, dtype: torch.dtype) -> None:
    """A quantized layer becomes one of its float class."""
    weight = _parameter(layer, dtype)
    own = {*own_names(type(layer)), *getattr(layer, "packed_names", ())} - {"weight"}
    kind = layer._made_of[1]
    for store in (layer.__dict__, layer._parameters, layer._buffers):
        for name in own & set(store):
            del store[name]
    layer.__class__ = kind
    layer.register_parameter("weight", weight)
    if "bias" in layer._parameters:  # behind the weight, as torch has them
        layer.register_parameter("bias", layer._parameters.pop("bias"))
    for parameter in layer.parameters(recurse=False):
        parameter.requires_grad_(True)


def _release(host: Any, name: str, dtype: torch.dtype) -> None:
    """A module reads a float parameter of its own in the place of a packed one."""
    parameter = parameter_of(name)
    weight = _parameter(held_parameter(host, parameter), dtype)
    del host._modules[name]
    if hasattr(host, "_hosts"):
        kind, names = host._hosts
        host.__class__ = hosting(kind, names - {parameter}) if names - {parameter} else kind
    host.register_parameter(parameter, weight)
    if isinstance(host, nn.RNNBase) and not hasattr(host, "_hosts"):
        host._flat_weights = [getattr(host, one) for one in host._flat_weights_names]


def _parameter(layer: Any, dtype: torch.dtype) -> nn.Parameter:
    with torch.no_grad():
        return nn.Parameter(layer.stored_numbers().detach().to(dtype).contiguous())


def _is_own(forward: object) -> bool:
    return type(forward).__module__.partition(".")[0] == __name__.partition(".")[0]
