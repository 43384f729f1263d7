"""What an export may not change: asked of scales and zeros before, of every tensor after."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import CheckpointError
from goldstick.formats import FLOAT16_SCALES
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.formats.input_scale import part_name, unpack_input, unpack_multiplier
from goldstick.formats.transformers_layers import StoredLayers


def change_of_values(
    stored: StoredLayers, layer: StoredLayer, target: StorageFormat, scale_dtype: torch.dtype
) -> str | None:
    """Why the numbers of a layer would change in another format, or ``None`` where they stay what they are.

    Args:
        stored: The checkpoint.
        layer: The layer; only its scales and zeros are read.
        target: The format.
        scale_dtype: What the scales become on the way.
    """
    infos = stored.parts(layer)
    into = torch.float16 if target.name in FLOAT16_SCALES else scale_dtype
    scale = infos[".scales" if ".scales" in infos else "_scale"].read()
    changed = int((scale.to(into).double() != scale.double()).sum())
    if changed:
        words = [str(dtype).removeprefix("torch.") for dtype in (scale.dtype, into)]
        remedy = "Export to native or compressed-tensors, which keep them."
        if into is not torch.float16:
            remedy = f'Set "dtype" in its config.json to {words[0]}, in which its scales were made, or to float32.'
        return f"{changed} of {scale.numel()} of its {words[0]} scales are no {words[1]} numbers. {remedy}"
    if stored.format.name == "native" and "_zero_point" in infos and target.name != "native":
        zero = infos["_zero_point"].read()
        if not bool(
            (zero == zero.round()).logical_and(zero >= 0).logical_and(zero <= layer.scheme.weight.code_max).all()
        ):
            return f"its zeros are fractions, and {target.name} holds whole ones. Only the native format holds it."
    return None


def compare_layers(source: StoredLayers, made: StoredLayers) -> dict[str, Any]:
    """Read every layer of both checkpoints and compare codes, scales, zeros and what stands beside them, bit by bit.

    Raises:
        CheckpointError: They differ; the message names the layer.
    """
    others = {layer.name: layer for layer in made.layers}
    for layer in source.layers:
        other = others.pop(layer.name, None)
        if other is None or not _same(_content(source, layer), _content(made, other), layer):
            raise CheckpointError(f"{layer.name} read back from {made.directory} is not what was exported.")
    if others:
        raise CheckpointError(f"{made.directory} holds the layer {min(others)}, which was not exported.")
    return {"method": "tensors", "tensors_quantized": len(source.layers), "passed": True}


def _content(stored: StoredLayers, layer: StoredLayer) -> tuple[QuantizedTensor, tuple[Tensor | None, ...]]:
    parts = stored.read(layer)
    tensor = stored.format.unpack(parts, layer.scheme, layer.shape[-1])
    inputs = unpack_input(parts, layer.scheme, layer.name)
    return tensor, (*inputs, unpack_multiplier(parts, layer.multiplied, layer.name))


def _same(
    one: tuple[QuantizedTensor, tuple[Tensor | None, ...]],
    other: tuple[QuantizedTensor, tuple[Tensor | None, ...]],
    layer: StoredLayer,
) -> bool:
    middle = torch.tensor(float(layer.scheme.weight.midpoint))
    (a, inputs_a), (b, inputs_b) = one, other
    # An asymmetric layer whose zeros are all the midpoint is what a symmetric one is.
    zeros = [middle.expand(t.scale.shape) if t.zero is None else t.zero.float() for t in (a, b)]
    beside = all(
        (x is None and y is None) or (x is not None and y is not None and torch.equal(x, y))
        for x, y in zip(inputs_a, inputs_b, strict=True)
    )
    return (
        beside
        and torch.equal(a.codes, b.codes)
        and torch.equal(a.scale.double(), b.scale.double())
        and zeros[0].equal(zeros[1])
    )


def same_copies(source: StoredLayers, made: StoredLayers) -> int:
    """How many tensors outside the quantized layers are copies; scales of a KV cache are written anew.

    Raises:
        CheckpointError: One is missing, or differs.
    """
    parts = {part_name(layer.name, suffix) for layer in source.layers for suffix in source.parts(layer)}
    count = 0
    for name, info in source.tensors.items():
        if name in parts or name.endswith((".k_scale", ".v_scale")):
            continue
        copy = made.tensors.get(name)
        if (
            copy is None
            or (copy.shape, copy.dtype) != (info.shape, info.dtype)
            or not _equal_bytes(copy.read(), info.read())
        ):
            raise CheckpointError(f"{name} in {made.directory} differs from the source, and should be its copy.")
        count += 1
    return count


def _equal_bytes(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
