"""Layers of a checkpoint in the native format's tensors, where transformers cannot be handed what its files hold.

transformers gathers the experts of a mixture into one parameter by stacking rows. The tensors of the native format can
be stacked so. Those of other formats cannot always: zeros are packed over rows, blocks have one scale for many of them.
And some formats alone know the shapes of their tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from functools import partial

import torch
from torch import Tensor

from goldstick.checkpoint.derived_tensor import DerivedTensor
from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.core.scheme import Scheme
from goldstick.errors import FormatError
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.formats.input_scale import part_name
from goldstick.formats.native import NATIVE
from goldstick.hf.layers import StoredLayers
from goldstick.structure.network import Network


def with_native_tensors(stored: StoredLayers, network: Network) -> dict[str, TensorInfo] | None:
    """Every tensor of a checkpoint, those that transformers cannot take as the native format would store them.

    Args:
        stored: Its quantized matrices.
        network: Its model, on the meta device.

    Returns:
        Name → tensor; ``None`` where nothing differs from what the files hold.

    Raises:
        FormatError: Experts have their columns in an order of their own.
    """
    fused = [layer for layer in stored.layers if network.by_name[layer.site].layout.fused]
    experts = [layer for layer in fused if not is_stacked_as_stored(stored.format, layer)]
    layers = stored.layers if stored.format.read_as_native else experts
    implied = _implied(stored, {layer.name for layer in layers})
    if not layers and not implied:
        return None
    if reordered := [layer.name for layer in experts if layer.act_order]:
        raise FormatError(
            f"{reordered[0]} of {stored.directory} is of an expert whose groups take their inputs from all over "
            "the row (act-order), and goldstick runs none such. Quantize the checkpoint again: as a source it is read."
        )
    tensors = {**stored.tensors, **implied}
    for layer in layers:
        for suffix in stored.parts(layer):
            del tensors[part_name(layer.name, suffix)]
        tensors |= _native(stored, layer)
    return tensors


def _implied(stored: StoredLayers, native: Collection[str]) -> dict[str, TensorInfo]:
    """Tensors that the writer of a checkpoint left out, of layers that transformers is handed as they are stored."""
    found: dict[str, TensorInfo] = {}
    for layer in stored.layers:
        for suffix, tensor in stored.format.implied(layer, stored.tensors).items() if layer.name not in native else ():
            name, beside = part_name(layer.name, suffix), stored.parts(layer).values()
            found[name] = DerivedTensor.of(name, (tensor.shape, tensor.dtype), beside, partial(_itself, tensor))
    return found


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def is_stacked_as_stored(storage: StorageFormat, layer: StoredLayer) -> bool:
    """Whether the tensors that a format stores experts in are those of the native format, and more at most."""
    dtype = layer.scale_dtype or torch.float32
    native = dataclasses.replace(layer, scheme=of_experts(layer.scheme))
    return NATIVE.specs(native, dtype).items() <= storage.specs(layer, dtype).items()


def of_experts(scheme: Scheme) -> Scheme:
    """The scheme that experts run: their inputs stay float."""
    return dataclasses.replace(scheme, activation=None)


def _native(stored: StoredLayers, layer: StoredLayer) -> dict[str, TensorInfo]:
    parts = stored.parts(layer)
    native = dataclasses.replace(layer, scheme=of_experts(layer.scheme))
    specs = NATIVE.specs(native, layer.scale_dtype or torch.float32)
    latest: dict[str, Tensor] = {}

    def part(suffix: str) -> Tensor:
        if suffix not in latest:  # each is asked for once, one after the other
            latest.update(NATIVE.pack(stored.unpack(layer), native.scheme))
        return latest.pop(suffix)

    return {
        part_name(layer.name, suffix): DerivedTensor.of(
            part_name(layer.name, suffix), spec, parts.values(), partial(part, suffix)
        )
        for suffix, spec in specs.items()
    }
