"""Modules that are no transformers models: stored natively, rebuilt from the user's own float module."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from goldstick import surgery
from goldstick.checkpoint.kv_cache import read_kv
from goldstick.checkpoint.source import open_tensors, read_json
from goldstick.checkpoint.unused_tensors import MANIFEST_NAME
from goldstick.core.edits import Quantize
from goldstick.core.grid import Grid
from goldstick.core.module_state import extra_states, held_tensors
from goldstick.core.qtensor import scale_dtype
from goldstick.core.scheme import Scheme
from goldstick.core.shared_storage import part_storage
from goldstick.core.stored_scale import pack_scale
from goldstick.errors import CheckpointError
from goldstick.formats.base import StoredLayer
from goldstick.formats.input_scale import (
    INPUT_GLOBAL_SCALE,
    INPUT_MULTIPLIER,
    INPUT_SCALE,
    INPUT_ZERO,
    part_name,
    unpack_input,
    unpack_multiplier,
)
from goldstick.formats.native import NATIVE
from goldstick.hf.cache import use_quantized_cache
from goldstick.hf.layers import StoredLayers
from goldstick.nn import PackedParameter, PackedWeight, QuantizedExperts
from goldstick.nn.packed import packed_tensors
from goldstick.nn.parameter import parameter_of
from goldstick.structure.network import Network
from goldstick.structure.norm_folding import norm_fold_from_dict
from goldstick.structure.pruning.cut import prune_from_dict
from goldstick.structure.rotation.online import turn_input

_PARTS = {
    "weight_packed": "_packed",
    "weight_scale": "_scale",
    "weight_zero_point": "_zero_point",
    "weight_global_scale": "_global_scale",
    "input_scale": INPUT_SCALE,
    "input_zero_point": INPUT_ZERO,
    "input_multiplier": INPUT_MULTIPLIER,
}
"""Buffers of a module on packed weights, and what their tensors are called in a checkpoint."""

_FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_into(model: nn.Module, directory: Path) -> nn.Module:
    """Rewrite a float module to what a native checkpoint holds.

    Raises:
        CheckpointError: The checkpoint is not of this module, or is incomplete.
        StructureError: Channels were cut that this module does not have.
    """
    manifest = read_json(directory / MANIFEST_NAME, f"no goldstick checkpoint: it has no {MANIFEST_NAME}")
    table = manifest.get("quantization")
    if not isinstance(table, Mapping):
        raise CheckpointError(
            f"The manifest of {directory} says nothing of its quantization. Copy the checkpoint again."
        )
    architecture = manifest.get("architecture")
    architecture = architecture if isinstance(architecture, Mapping) else {}
    part_storage(model)
    surgery.apply(Network(model), [norm_fold_from_dict(told) for told in architecture.get("folded_norms") or []])
    for told in architecture.get("pruned") or []:
        surgery.apply(Network(model), [prune_from_dict(told)])
    network = Network(model)
    tensors = open_tensors(directory)
    used: set[str] = set()
    listed = NATIVE.listed(table)
    computes_in = told if isinstance(told := architecture.get("computes_in"), Mapping) else {}
    for name, scheme in listed.schemes.items():
        site = network.by_name.get(name)
        if site is None:
            raise CheckpointError(f"{directory} quantizes {name!r}, which this {type(model).__name__} does not have.")
        layer = StoredLayer(
            name=site.parameter_name,
            site=name,
            kind=site.layout.value,
            shape=site.matrix_shape,
            scheme=scheme,
            fractional_zeros=False,
            multiplied=name in listed.multiplied,
            scale_dtype=NATIVE.scale_dtype(site.parameter_name, scheme.weight, tensors),
        )
        stored = StoredLayers(directory=directory, format=NATIVE, layers=(layer,), tensors=tensors)
        parts = stored.read(layer)
        used.update(part_name(layer.name, suffix) for suffix in parts)
        tensor = stored.unpack(layer, parts)
        if scheme.weight.scale is not None:  # stored as codes, and computed with in the layer's dtype
            dtype = _FLOATS.get(str(computes_in.get(name))) or scale_dtype(site.dtype)
            tensor = dataclasses.replace(tensor, scale=tensor.scale.to(dtype))
        input_scale, input_zero = unpack_input(parts, scheme, site.module)
        edit = Quantize(
            site=name,
            scheme=scheme,
            tensor=tensor,
            algorithm="loaded",
            input_scale=input_scale,
            input_zero=input_zero,
            input_multiplier=unpack_multiplier(parts, name in listed.multiplied, site.module),
        )
        turn_input(network, site, listed.rotated.get(name, 0))
        surgery.apply(network, [edit])
    for tied, owner in listed.ties.items():
        if tied not in network.by_name:
            raise CheckpointError(f"{directory} ties {tied!r}, which this {type(model).__name__} does not have.")
        surgery.tie(network, network.by_name[tied], network.by_name[owner])
    floats = {name: info.read() for name, info in tensors.items() if name not in used}
    shared = architecture.get("shared")
    _load_floats(model, floats, shared if isinstance(shared, Mapping) else {}, directory)
    if (kv := read_kv(directory, {})) is not None:
        use_quantized_cache(model, kv)
    return model.eval()


def _load_floats(model: nn.Module, floats: Mapping[str, Tensor], shared: Mapping[str, Any], directory: Path) -> None:
    """Fill in what is not quantized; ``shared`` names those that are stored under another's name."""
    packed = set(packed_tensors(model))
    expected = {name: value for name, value in held_tensors(model).items() if name not in packed}
    owners: dict[int, str] = {}
    for name, value in expected.items():
        first = owners.setdefault(id(value), name)
        source = floats.get(name, floats.get(str(shared.get(name, first)), floats.get(first)))
        if source is None or source.shape != value.shape:
            raise CheckpointError(f"{directory} lacks the tensor {name!r} of shape {tuple(value.shape)}.")
        if value.is_meta or value.dtype != source.dtype or _repeats(value):
            _replace(model, name, expected, source)
            owners[id(expected[name])] = first
        else:
            value.data.copy_(source)
    extra = extra_states(model)
    for name in extra:
        if name not in floats:
            raise CheckpointError(f"{directory} lacks the tensor {name!r}, the extra state of a module.")
        model.get_submodule(name.rpartition(".")[0]).set_extra_state(floats[name])
    unexpected = set(floats) - set(expected) - set(extra)
    if unexpected:
        raise CheckpointError(f"{directory} holds {sorted(unexpected)[0]!r}, which the module does not have.")
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.is_meta:
            raise CheckpointError(
                f"{name} of this {type(model).__name__} is on the meta device, and {directory} does not hold it. Build "
                "the module on the CPU."
            )


def _repeats(tensor: Tensor) -> bool:
    """Whether several of a tensor's numbers are one in memory, as ``expand`` leaves them."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _replace(model: nn.Module, name: str, expected: dict[str, Tensor], source: Tensor) -> None:
    """Put what was stored in the place of a tensor on the meta device or of another dtype, wherever that is held."""
    old = expected[name]
    new = nn.Parameter(source, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else source
    if not old.is_meta:
        new.data = new.data.to(old.device)
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for leaf, tensor in held.items():
                if tensor is old:
                    held[leaf] = new  # type: ignore[assignment]
    for other, tensor in expected.items():
        if tensor is old:
            expected[other] = new


def tensor_hashes(model: nn.Module) -> dict[str, str]:
    """sha256 of everything a rewritten plain module stores, by the name of its tensor in the checkpoint."""
    hashes = {}
    modules: dict[str, Any] = dict(model.named_modules(remove_duplicate=False))
    beside = {path for path, module in modules.items() if isinstance(module, PackedParameter | QuantizedExperts)}
    floats = {name: value for name, value in extra_states(model).items() if isinstance(value, Tensor)}
    for name, value in (held_tensors(model) | floats).items():
        owner, _, leaf = name.rpartition(".")
        module = modules[owner]
        if isinstance(module, PackedWeight) and leaf in _PARTS:
            value = _as_stored(value, leaf, module.grid)
            parameter = parameter_of(owner) if owner in beside else f"{owner}.weight" if owner else "weight"
            name = part_name(parameter, _suffix(leaf, module.scheme))
        hashes[name] = tensor_hash(value)
    return hashes


def _suffix(leaf: str, scheme: Scheme) -> str:
    """What the tensor of a buffer is called in a checkpoint, behind its weight's name."""
    divides = leaf == "input_scale" and scheme.activation is not None and scheme.activation.tensor_scaled
    return INPUT_GLOBAL_SCALE if divides else _PARTS[leaf]


def _as_stored(value: Tensor, leaf: str, grid: Grid) -> Tensor:
    """What a checkpoint holds in the place of a buffer: scales that lie on a grid have codes of eight bits there."""
    if leaf == "weight_scale":
        return pack_scale(value.detach(), grid)
    return value.to(torch.int8) if leaf == "weight_zero_point" and grid.minimums else value


def tensor_hash(value: Tensor) -> str:
    """sha256 of a tensor's bytes."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"").hexdigest()


def compare_stored(directory: Path, expected: Mapping[str, str]) -> dict[str, Any]:
    """Read every tensor of a checkpoint back and compare its hash with the one in memory."""
    found = {name: tensor_hash(info.read()) for name, info in open_tensors(directory).items()}
    wrong = sorted(name for name, digest in found.items() if expected.get(name) != digest)
    values = set(found.values())
    lost = sorted(name for name, digest in expected.items() if name not in found and digest not in values)
    return {
        "method": "stored",
        "tensors": len(found),
        "wrong": (wrong + lost)[:5],
        "passed": not wrong and not lost,
    }
