"""What an export may not change: asked of scales and zeros before, of every tensor after."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.kv_cache import KV_SCALES
from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import CheckpointError
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.formats.input_scale import part_name, unpack_multiplier
from goldstick.hf.layers import StoredLayers


def change_of_values(
    stored: StoredLayers, layer: StoredLayer, target: StorageFormat, scale_dtype: torch.dtype
) -> str | None:
    """Why the numbers of a layer would change in another format, or ``None`` where they stay what they are.

    Args:
        stored: The checkpoint.
        layer: The layer; only its scales and zeros are read, except where blocks hold them beside their codes.
        target: The format.
        scale_dtype: What the scales become on the way.
    """
    into = torch.float16 if target.float16_scales else scale_dtype
    scale, zero = _scale_and_zero(stored, layer, target)
    if not bool(torch.isfinite(scale).all()):
        return "its scales are not all numbers: some are NaN or infinite. Quantize it again."
    changed = int((scale.to(into).double() != scale.double()).sum())
    if changed:
        words = [str(dtype).removeprefix("torch.") for dtype in (scale.dtype, into)]
        remedy = "Export to native or compressed-tensors, which keep them."
        if into is not torch.float16:
            remedy = f'Set "dtype" in its config.json to {words[0]}, in which its scales were made, or to float32.'
        return f"{changed} of {scale.numel()} of its {words[0]} scales are no {words[1]} numbers. {remedy}"
    return None if zero is None else target.refuses_zeros(scale, zero, layer.scheme.weight)


def _scale_and_zero(stored: StoredLayers, layer: StoredLayer, target: StorageFormat) -> tuple[Tensor, Tensor | None]:
    """Scales and zeros of a layer; without zeros where they are sure to fit the target."""
    scales, zeros, grid = stored.format.scale_suffix, stored.format.zero_suffix, layer.scheme.weight
    in_codes = grid.scale is not None or stored.format.read_as_native
    if scales is None or in_codes or (target.rounds_zeros and not grid.symmetric):
        tensor = stored.unpack(layer)
        return tensor.scale, tensor.zero
    infos = stored.parts(layer)
    return infos[scales].read(), infos[zeros].read() if zeros in infos else None


def compare_layers(source: StoredLayers, made: StoredLayers) -> dict[str, Any]:
    """Read every layer of both checkpoints and compare codes, scales, zeros and what stands beside them, bit by bit.

    Raises:
        CheckpointError: They differ; the message names the layer.
    """
    others = {layer.name: layer for layer in made.layers}
    for layer in source.layers:
        other = others.pop(layer.name, None)
        if (
            other is None
            or other.rotated != layer.rotated
            or not _same(_content(source, layer), _content(made, other), layer)
        ):
            raise CheckpointError(f"{layer.name} read back from {made.directory} is not what was exported.")
    if others:
        raise CheckpointError(f"{made.directory} holds the layer {min(others)}, which was not exported.")
    return {"method": "tensors", "tensors_quantized": len(source.layers), "passed": True}


def _content(stored: StoredLayers, layer: StoredLayer) -> tuple[QuantizedTensor, tuple[Tensor | None, ...]]:
    parts = stored.read(layer)
    tensor = stored.unpack(layer, parts)
    inputs = stored.format.unpack_input(parts, layer.scheme, layer.name)
    return tensor, (*inputs, unpack_multiplier(parts, layer.multiplied, layer.name))


def _same(
    one: tuple[QuantizedTensor, tuple[Tensor | None, ...]],
    other: tuple[QuantizedTensor, tuple[Tensor | None, ...]],
    layer: StoredLayer,
) -> bool:
    middle = torch.tensor(layer.scheme.weight.midpoint, dtype=torch.float32)
    (a, inputs_a), (b, inputs_b) = one, other
    # An asymmetric layer whose zeros are all the midpoint is what a symmetric one is.
    zeros = [middle.expand(t.scale.shape) if t.zero is None else t.zero.float() for t in (a, b)]
    groups = max(a.scale.shape[-1], b.scale.shape[-1])  # blocks of GGUF repeat the scale of a larger group
    beside = all(
        (x is None and y is None) or (x is not None and y is not None and torch.equal(x, y))
        for x, y in zip(inputs_a, inputs_b, strict=True)
    )
    return (
        beside
        and torch.equal(a.codes, b.codes)
        and torch.equal(_in_groups(a.scale, groups).double(), _in_groups(b.scale, groups).double())
        and (a.global_scale is None) == (b.global_scale is None)
        and (a.global_scale is None or b.global_scale is None or torch.equal(a.global_scale, b.global_scale))
        and _in_groups(zeros[0], groups).equal(_in_groups(zeros[1], groups))
        and torch.equal(*(_columns(t) for t in (a, b)))
    )


def _in_groups(values: Tensor, groups: int) -> Tensor:
    return values.repeat_interleave(groups // values.shape[-1], dim=-1)


def _columns(tensor: QuantizedTensor) -> Tensor:
    order = tensor.input_order
    return torch.arange(tensor.in_features) if order is None else order.long()


def same_copies(source: StoredLayers, made: StoredLayers) -> int:
    """How many tensors outside the quantized layers are copies; scales of a KV cache are written anew.

    Raises:
        CheckpointError: One is missing, or differs.
    """
    parts = {part_name(layer.name, suffix) for layer in source.layers for suffix in source.parts(layer)}
    count = 0
    for name, info in source.tensors.items():
        if name in parts or name.endswith(KV_SCALES):
            continue
        copy = made.tensors.get(name)
        if copy is None or not copy.holds(info.read()):
            raise CheckpointError(f"{name} in {made.directory} differs from the source, and should be its copy.")
        count += 1
    return count
