"""The tensors that stand beside a weight for its layer's input; both formats store ranges as compressed-tensors does.

``input_scale`` [1] in the dtype of the weight's scales and, for an asymmetric input, ``input_zero_point`` int8 [1], the
zero among the signed codes. They stand beside the weight: ``….q_proj.input_scale`` for ``….q_proj.weight``. The native
format also has ``input_multiplier`` [in], what the input is multiplied by before anything else, and ``input_order``
int32 [in], which input belongs to every column of codes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from goldstick.core.input_range import check_input_range
from goldstick.core.scheme import Scheme
from goldstick.errors import CheckpointError

#: Appended to the weight's name less its last word; see :func:`part_name`.
INPUT_SCALE, INPUT_ZERO, INPUT_MULTIPLIER = ".input_scale", ".input_zero_point", ".input_multiplier"
INPUT_ORDER = ".input_order"
#: What the scales of an NVFP4 input are divided by.
INPUT_GLOBAL_SCALE = ".input_global_scale"


def part_name(weight: str, suffix: str) -> str:
    """The name of a part of a layer: the suffix after the weight's name, or for ``.suffix`` after its module's name."""
    return weight.rpartition(".")[0] + suffix if suffix.startswith(".") else weight + suffix


def input_specs(scheme: Scheme, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of the tensors of an input by suffix; none where its range is not static."""
    if not scheme.static_input or scheme.activation is None:
        return {}
    if scheme.activation.tensor_scaled:
        return {INPUT_GLOBAL_SCALE: (torch.Size([1]), torch.float32)}
    specs = {INPUT_SCALE: (torch.Size([1]), scale_dtype)}
    if not scheme.activation.symmetric:
        specs[INPUT_ZERO] = (torch.Size([1]), torch.int8)
    return specs


def pack_input(
    scheme: Scheme, scale: Tensor | None, zero: Tensor | None, scale_dtype: torch.dtype
) -> dict[str, Tensor]:
    """The tensors of an input by suffix.

    Raises:
        QuantizationError: The scale or zero is missing, or given where the scheme has no use for it.
    """
    check_input_range(scheme, scale, zero)
    parts = {}
    if scale is not None and scheme.activation is not None and scheme.activation.tensor_scaled:
        return {INPUT_GLOBAL_SCALE: scale.reshape(1).float()}
    if scale is not None:
        parts[INPUT_SCALE] = scale.reshape(1).to(scale_dtype)
    if zero is not None:
        parts[INPUT_ZERO] = zero.reshape(1)
    return parts


def unpack_input(parts: Mapping[str, Tensor], scheme: Scheme, layer: str) -> tuple[Tensor | None, Tensor | None]:
    """Scale [1] and zero [1] of an input from its tensors by suffix; inverse of :func:`pack_input`.

    Raises:
        CheckpointError: One that the scheme calls for is missing, or the scale is no positive number; the message names
            the layer.
    """
    wanted = input_specs(scheme, torch.float32)
    missing = [suffix for suffix in wanted if suffix not in parts]
    if missing:
        raise CheckpointError(f"The tensor {layer + missing[0]!r} is missing, which its scheme {scheme.label} needs.")
    for suffix in wanted:
        found = parts[suffix]
        if suffix != INPUT_ZERO and not found.is_meta and not bool((found.isfinite() & (found > 0)).all()):
            raise CheckpointError(
                f"{layer + suffix} is {float(found.flatten()[0])}, and what inputs are scaled with is a positive "
                "number. Calibrate the layer again."
            )
    if INPUT_GLOBAL_SCALE in wanted:
        return parts[INPUT_GLOBAL_SCALE], None
    return (
        parts[INPUT_SCALE] if INPUT_SCALE in wanted else None,
        parts[INPUT_ZERO] if INPUT_ZERO in wanted else None,
    )


def unpack_multiplier(parts: Mapping[str, Tensor], multiplied: bool, layer: str) -> Tensor | None:
    """The multiplier [in] of an input from the tensors of a layer by suffix, or ``None`` where it has none.

    Raises:
        CheckpointError: It is missing although the layer is ``multiplied``; the message names the layer.
    """
    if multiplied and INPUT_MULTIPLIER not in parts:
        raise CheckpointError(f"The tensor {layer + INPUT_MULTIPLIER!r} is missing, which the config declares.")
    return parts[INPUT_MULTIPLIER] if multiplied else None
