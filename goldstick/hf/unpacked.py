"""The quantized tensor of the parts that transformers has read for a site."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.core.lost_weights import check_no_weight_is_lost
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.errors import CheckpointError, FormatError, GoldstickError
from goldstick.formats.base import StorageFormat
from goldstick.formats.input_scale import part_name
from goldstick.structure.network import Site


def require_read(parts: Mapping[str, Tensor], place: nn.Module, site: Site) -> None:
    """Refuse a site of which transformers has not read everything: it leaves in its place whatever the memory held.

    Args:
        parts: What stands in the places of its tensors.
        place: The module that holds them.
        site: The site.

    Raises:
        CheckpointError: A tensor of it was missing, or of another shape and passed over.
    """
    if hasattr(place, "_hf_hook"):  # its tensors rest elsewhere, and lie here as others
        return
    lost = [part_name(site.parameter_name, suffix) for suffix, part in parts.items() if not _was_read(part)]
    if lost:
        raise CheckpointError(
            f"{lost[0]} is missing, or of another shape than the model of this config has: a quantized layer cannot be "
            "initialised anew. Load the checkpoint with the sizes of its own config; a layer that is to be replaced, "
            "such as a head for other labels, is left out when the model is quantized (targets: {exclude: "
            f'["{site.module}"]}}).'
        )


def refuse_casts_to_codes(converter: Any, stored: Any, dtype: torch.dtype | None, suffixes: Collection[str]) -> None:
    """Refuse to cast a tensor of a quantized layer to the dtype of codes, which would make other numbers of it.

    Args:
        converter: transformers' conversion that the tensor goes through; it has its name.
        stored: The tensor, or what stands for one in a file.
        dtype: What it would be cast to; ``None`` for nothing.
        suffixes: What tensors of quantized layers have behind the name of the weight.

    Raises:
        CheckpointError: It would.
    """
    if dtype is None or (dtype.is_floating_point and dtype.itemsize > 1):
        return
    name = converter.target_patterns[0]
    if not name.endswith(tuple(suffix.lstrip(".") for suffix in suffixes)):
        return
    named = str(stored.get_dtype() if hasattr(stored, "get_dtype") else stored.dtype)
    if not dtype.is_floating_point or "8" not in named:
        raise CheckpointError(
            f"{name} is stored as {named.removeprefix('torch.')} and the config makes it "
            f"{str(dtype).removeprefix('torch.')}: the files are not of this config. The state_dict of a loaded model "
            "is no checkpoint; copy the one that it was loaded from."
        )


def _was_read(part: Tensor) -> bool:
    return bool(getattr(part, "_is_hf_initialized", False))


def unpack_read(parts: Mapping[str, Tensor], scheme: Scheme, site: Site, storage: StorageFormat) -> QuantizedTensor:
    """What the parts of a site say; each of the matrices that are stacked in experts has a divisor of its own.

    Raises:
        FormatError: They are of another shape or hold what no weight is.
    """
    divisor = parts.get("_global_scale")
    if site.layout.fused and scheme.weight.tensor_scaled and divisor is not None and divisor.shape[1] > 1:
        rows = divisor.repeat_interleave(site.matrix_shape[1] // divisor.shape[1], dim=1)
        parts = {**parts, "_global_scale": rows}
    try:
        tensor = storage.unpack(parts, scheme, site.in_features)
        check_no_weight_is_lost(tensor)
    except GoldstickError as error:
        raise FormatError(f"{site.module} cannot be loaded: {error}") from error
    return tensor
