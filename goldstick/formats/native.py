"""The native format: holds whatever a QuantizedTensor can be, one table of layers in the config."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows, packed_width, unpack_rows
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.core.stored_scale import check_stored_scales, pack_scale, packed_scale_dtype, unpack_scale
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.formats.input_scale import INPUT_MULTIPLIER, INPUT_ORDER, input_specs, pack_input


class Native(StorageFormat):
    """Packed rows, scales in the model's dtype and zeros in float32, for every layout and any zero.

    ``X_packed`` int32 [..., out, ceil(in · bits / 32)], ``X_scale`` [..., out, groups] and, for asymmetric grids,
    ``X_zero_point`` float32 [..., out, groups], of superblocks int8. Scales that lie on a grid are stored as its codes,
    with ``X_global_scale`` float32 [..., 1, 1] where they have a scale, or [..., out, 1 or 2, superblocks]. Beside it
    ``input_scale`` and ``input_zero_point`` of a static input, ``input_multiplier`` [in] of a multiplied one, and
    ``input_order`` int32 [in] where columns lie in an order of their own.
    """

    name = "native"
    method = "goldstick"
    zero_suffix = "_zero_point"
    expert_suffixes = ("_packed", "_scale", "_zero_point", "_global_scale")
    loading = (
        "Load it with `goldstick.load(directory)`, or `import goldstick` before transformers' `from_pretrained`: "
        "without\ngoldstick, transformers initialises the compressed layers at random."
    )
    holds_stacks = True
    holds_order = True
    holds_rotations = True
    signed_scales = True

    def refuses(self, layer: StoredLayer) -> str | None:
        """Nothing is refused."""
        return None

    def refuses_zeros(self, scale: Tensor, zero: Tensor, grid: Grid) -> str | None:
        """Zeros may be fractions."""
        return None

    def specs(self, layer: StoredLayer, scale_dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes by suffix."""
        *lead, in_features = layer.shape
        grid = layer.scheme.weight
        scales = torch.Size([*lead, grid.groups(in_features)])
        specs = {
            "_packed": (torch.Size([*lead, packed_width(in_features, grid.bits)]), torch.int32),
            "_scale": (scales, packed_scale_dtype(grid) or scale_dtype),
        }
        if grid.superblock is not None:
            planes = torch.Size([*lead, 1 + grid.minimums, in_features // grid.superblock])
            specs["_global_scale"] = (planes, torch.float32)
        if grid.tensor_scaled:
            specs["_global_scale"] = (torch.Size([*lead[:-1], 1, 1]), torch.float32)
        if not grid.symmetric:
            specs["_zero_point"] = (scales, torch.int8 if grid.minimums else torch.float32)
        if layer.multiplied:
            specs[INPUT_MULTIPLIER] = (torch.Size([in_features]), scale_dtype)
        if layer.act_order:
            specs[INPUT_ORDER] = (torch.Size([in_features]), torch.int32)
        return specs | input_specs(layer.scheme, scale_dtype)

    def pack(
        self,
        tensor: QuantizedTensor,
        scheme: Scheme,
        input_scale: Tensor | None = None,
        input_zero: Tensor | None = None,
        input_multiplier: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The tensors of a layer by suffix."""
        parts = {"_packed": pack_rows(tensor.codes, tensor.grid.bits), "_scale": pack_scale(tensor.scale, tensor.grid)}
        if tensor.global_scale is not None:
            parts["_global_scale"] = tensor.global_scale
        if tensor.zero is not None:
            parts["_zero_point"] = tensor.zero.to(torch.int8 if tensor.grid.minimums else torch.float32)
        if input_multiplier is not None:
            parts[INPUT_MULTIPLIER] = input_multiplier.to(tensor.scale.dtype)
        if tensor.input_order is not None:
            parts[INPUT_ORDER] = tensor.input_order.int()
        return parts | pack_input(scheme, input_scale, input_zero, tensor.scale.dtype)

    def unpack(self, parts: Mapping[str, Tensor], scheme: Scheme, in_features: int) -> QuantizedTensor:
        """The layer from its tensors."""
        grid = scheme.weight
        codes = unpack_rows(parts["_packed"], grid.bits, in_features)
        zero = None if grid.symmetric else parts["_zero_point"].float()
        order = parts.get(INPUT_ORDER)
        scale, divisor = unpack_scale(parts["_scale"], grid), parts.get("_global_scale")
        if not grid.integers:
            check_stored_scales(scale, divisor if grid.tensor_scaled else None)
        return QuantizedTensor(codes=codes, scale=scale, zero=zero, grid=grid, input_order=order, global_scale=divisor)


NATIVE = Native()
