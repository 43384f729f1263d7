"""Save: a rewritten network in memory becomes the files of a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from goldstick.checkpoint.entries import Entry
from goldstick.checkpoint.kv_cache import StoredKV, attention_modules, stored_kv
from goldstick.core.error import WeightError
from goldstick.core.kv_cache import KVSettings
from goldstick.core.layout import Layout
from goldstick.core.module_state import extra_states, held_tensors, is_plain, shared_tensors
from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import FormatError
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.formats.input_scale import part_name
from goldstick.formats.stored_piece import StoredPiece as StoredPiece
from goldstick.hf.names import CheckpointNames
from goldstick.nn import PackedWeight, QuantizedConvolution, QuantizedLinear
from goldstick.nn.packed import packed_tensors
from goldstick.nn.parameter import held_parameter
from goldstick.recipes.resolve import Assignment, Resolution
from goldstick.structure.network import Network, Site


def quantized_pieces(
    network: Network, resolution: Resolution, names: CheckpointNames | None, sites: Sequence[Site] | None = None
) -> list[StoredPiece]:
    """Every quantized weight of a rewritten network, split into the tensors its checkpoint stores.

    Args:
        network: Rewritten; its ``sites`` are those it had before.
        resolution: What was decided.
        names: How the model's checkpoint names tensors; ``None`` keeps the parameters' names.
        sites: Which sites, those of ``network`` where ``None``.
    """
    pieces = []
    for site in network.sites if sites is None else sites:
        assignment = resolution.assignments.get(site.name)
        if assignment is not None:
            packed = _packed(network, site)
            inputs = _input_tensors(packed)
            split = _split(site, packed.quantized_tensor(), names)
            if inputs and len(split) > 1:
                raise FormatError(
                    f"{site.name} is {len(split)} tensors in its checkpoint, which cannot share one static input "
                    "scale or one input multiplier; give it a dynamic scheme in 'overrides' and leave it out of "
                    "'unfoldable: multiply', or exclude it."
                )
            for name, tensor in split.items():
                pieces.append(StoredPiece(layer=_layer(name, site, tensor, assignment), tensor=tensor, **inputs))
    return pieces


def _input_tensors(packed: PackedWeight) -> dict[str, Tensor]:
    if not isinstance(packed, QuantizedLinear | QuantizedConvolution):
        return {}
    found = {"input_scale": packed.input_scale, "input_zero": packed.input_zero_point}
    if isinstance(packed, QuantizedLinear):
        found["input_multiplier"] = packed.input_multiplier
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _packed(network: Network, site: Site) -> PackedWeight:
    module = network.module(site)
    return module if isinstance(module, PackedWeight) else held_parameter(module, site.parameter)


def _split(site: Site, tensor: QuantizedTensor, names: CheckpointNames | None) -> dict[str, QuantizedTensor]:
    parameter = site.parameter_name
    if names is None or not names.rows_survive(parameter):
        return {parameter: tensor}
    codes = names.to_checkpoint({parameter: tensor.codes})
    scale = names.to_checkpoint({parameter: tensor.scale})
    zero = names.to_checkpoint({parameter: tensor.zero}) if tensor.zero is not None else {}
    divisor: dict[str, Tensor] = {}
    if tensor.global_scale is not None and tensor.grid.superblock is not None:
        planes = tensor.global_scale.shape[-2:]
        found = names.to_checkpoint({parameter: tensor.global_scale.flatten(-2)})
        divisor = {name: part.reshape(*part.shape[:-1], *planes) for name, part in found.items()}
    elif tensor.global_scale is not None:
        rows = tensor.global_scale.expand(*tensor.codes.shape[:-1], 1).contiguous()
        divisor = {name: found[..., :1, :] for name, found in names.to_checkpoint({parameter: rows}).items()}
    return {
        name: dataclasses.replace(
            tensor, codes=codes[name], scale=scale[name], zero=zero.get(name), global_scale=divisor.get(name)
        )
        for name in codes
    }


def _layer(name: str, site: Site, tensor: QuantizedTensor, assignment: Assignment) -> StoredLayer:
    return StoredLayer(
        name=name,
        site=site.name,
        kind="experts" if site.layout is Layout.TRANSPOSED_EXPERTS else site.layout.value,
        shape=tensor.codes.shape,
        scheme=assignment.scheme,
        fractional_zeros=assignment.stage.fractional_zeros,
        float16_ranges=assignment.stage.float16_ranges,
        multiplied=assignment.multiplied,
        scale_dtype=tensor.scale.dtype,
        rotated=assignment.rotated,
    )


def float_tensors(
    network: Network,
    names: CheckpointNames | None,
    within: Callable[[str], bool] = lambda name: True,
    every_end: bool = False,
) -> dict[str, Tensor]:
    """Every float parameter and persistent buffer a rewritten network still holds, once, as a checkpoint names it.

    With them what modules give as extra state; what :func:`cannot_be_stored` names is left out.

    Args:
        network: Rewritten.
        names: How the model's checkpoint names tensors; ``None`` keeps the parameters' names.
        within: Which of them, by the model's name.
        every_end: Whether tied ones come under each of their names, for a model whose readers tie none.
    """
    packed = set(packed_tensors(network.model))
    held = {name: value for name, value in held_tensors(network.model).items() if name not in packed and within(name)}
    tied = {} if every_end else shared_tensors(held)
    state = {name: value.detach() for name, value in held.items() if name not in tied and is_plain(value)}
    for name, value in extra_states(network.model).items():
        if isinstance(value, Tensor) and is_plain(value) and within(name):
            state[name] = value.detach()
    return names.to_checkpoint(state) if names else state


def kv_to_store(
    network: Network, settings: KVSettings | None, storage: StorageFormat, names: CheckpointNames | None
) -> StoredKV | None:
    """What a checkpoint holds of the quantized KV cache of a model, if it has one.

    Args:
        network: The network, with the sites it had before anything was rounded; possibly on the meta device.
        settings: Its cache.
        storage: The storage format of the weights.
        names: How the checkpoint of a transformers model names tensors.
    """
    if settings is None:
        return None
    dtype = next((site.dtype for site in network.sites if site.dtype.is_floating_point), torch.float32)
    stored = stored_kv(settings, attention_modules(network.model), storage, dtype)
    return stored if names is None else dataclasses.replace(stored, tensors=names.to_checkpoint(stored.tensors))


def save_entries(pieces: list[StoredPiece], floats: Mapping[str, Tensor], storage: StorageFormat) -> list[Entry]:
    """Entries of a network in memory: float tensors as they are, quantized ones packed when their turn comes."""
    entries = [
        Entry(name=name, outputs={name: (value.shape, value.dtype)}, produce=partial(_copy, name, value))
        for name, value in floats.items()
    ]
    for piece in pieces:
        specs = storage.specs(piece.layer, piece.tensor.scale.dtype)
        outputs = {part_name(piece.layer.name, suffix): spec for suffix, spec in specs.items()}
        entries.append(Entry(name=piece.layer.name, outputs=outputs, produce=partial(_pack, piece, storage)))
    return sorted(entries, key=lambda entry: entry.name)


def _copy(name: str, value: Tensor) -> dict[str, Tensor]:
    return {name: value.detach().cpu()}


def _pack(piece: StoredPiece, storage: StorageFormat) -> dict[str, Tensor]:
    parts = storage.pack(piece.tensor, piece.layer.scheme, piece.input_scale, piece.input_zero, piece.input_multiplier)
    return {part_name(piece.layer.name, suffix): part.cpu() for suffix, part in parts.items()}


def stored_bytes(
    network: Network, pieces: list[StoredPiece], storage: StorageFormat
) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of every parameter and buffer of a rewritten network, as (float ones, quantized sites)."""
    quantized: dict[str, int] = {}
    for piece in pieces:
        specs = storage.specs(piece.layer, piece.tensor.scale.dtype)
        parameter = network.by_name[piece.layer.site].parameter_name
        size = sum(shape.numel() * dtype.itemsize for shape, dtype in specs.values())
        quantized[parameter] = quantized.get(parameter, 0) + size
    floats = {name: value.nbytes for name, value in float_tensors(network, None).items()}
    return floats, quantized


def error_sums(errors: Mapping[str, WeightError]) -> dict[str, dict[str, float | None]]:
    """Errors as plain data for a manifest."""
    return {
        name: {"sqnr_db": error.sqnr_db, "noise": error.noise, "max_abs_error": error.max_abs}
        for name, error in errors.items()
    }
