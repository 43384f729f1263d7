"""The layouts of compressed-tensors: which tensors hold the codes and scales of a scheme, and how."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from goldstick.core.bitpack import pack_rows, packed_width, unpack_rows
from goldstick.core.grid import POWERS_OF_TWO, Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.core.stored_scale import check_stored_scales, pack_scale, packed_scale_dtype, unpack_scale
from goldstick.errors import FormatError

Specs = dict[str, tuple[torch.Size, torch.dtype]]


class CodeLayout(ABC):
    """How one of the layouts stores a weight; what belongs to the input stands beside it.

    Attributes:
        name: What the ``format`` of a config group calls it.
    """

    name: str

    @abstractmethod
    def specs(self, shape: torch.Size, grid: Grid, scale_dtype: torch.dtype) -> Specs:
        """Shape and dtype of every tensor by suffix."""

    @abstractmethod
    def pack(self, tensor: QuantizedTensor) -> dict[str, Tensor]:
        """The tensors by suffix."""

    @abstractmethod
    def unpack(self, parts: Mapping[str, Tensor], grid: Grid, in_features: int) -> QuantizedTensor:
        """The weight from its tensors.

        Raises:
            FormatError: They do not belong together.
        """


class PackedIntegers(CodeLayout):
    """Codes in whole words, zeros packed along the output rows."""

    name = "pack-quantized"

    def specs(self, shape: torch.Size, grid: Grid, scale_dtype: torch.dtype) -> Specs:
        """Codes, scales, shape, and zeros of asymmetric grids."""
        rows, columns = shape
        groups = grid.groups(columns)
        specs = {
            "_packed": (torch.Size([rows, packed_width(columns, grid.bits)]), torch.int32),
            "_scale": (torch.Size([rows, groups]), scale_dtype),
            "_shape": (torch.Size([2]), torch.int64),
        }
        if not grid.symmetric:
            specs["_zero_point"] = (torch.Size([packed_width(rows, grid.bits), groups]), torch.int32)
        return specs

    def pack(self, tensor: QuantizedTensor) -> dict[str, Tensor]:
        """The tensors by suffix."""
        bits = tensor.grid.bits
        parts = {
            "_packed": pack_rows(tensor.codes, bits),
            "_scale": tensor.scale,
            "_shape": torch.tensor(tensor.codes.shape, dtype=torch.int64),
        }
        if tensor.zero is not None:
            parts["_zero_point"] = pack_rows(tensor.zero.T.contiguous().to(torch.uint8), bits).T.contiguous()
        return parts

    def unpack(self, parts: Mapping[str, Tensor], grid: Grid, in_features: int) -> QuantizedTensor:
        """The weight from its tensors."""
        rows = parts["_packed"].shape[-2]
        if "_shape" in parts and parts["_shape"].tolist() != [rows, in_features]:
            raise FormatError(
                f"its weight_shape says {parts['_shape'].tolist()} and its codes are those of {[rows, in_features]}; "
                "the checkpoint contradicts itself."
            )
        codes, zero = unpack_rows(parts["_packed"], grid.bits, in_features), None
        if not grid.symmetric:
            zero = unpack_rows(parts["_zero_point"].T.contiguous(), grid.bits, rows).T.contiguous().float()
        return QuantizedTensor(codes=codes, scale=parts["_scale"], zero=zero, grid=grid)


class IntegerBytes(CodeLayout):
    """An int8 for every code, of 4 bits too: what readers run 8-bit activations from."""

    name = "int-quantized"

    def specs(self, shape: torch.Size, grid: Grid, scale_dtype: torch.dtype) -> Specs:
        """Codes under the name of the weight, and scales."""
        return {"": (shape, torch.int8), "_scale": (torch.Size([shape[0], grid.groups(shape[1])]), scale_dtype)}

    def pack(self, tensor: QuantizedTensor) -> dict[str, Tensor]:
        """The tensors by suffix."""
        return {"": (tensor.codes.short() - tensor.grid.midpoint).to(torch.int8), "_scale": tensor.scale}

    def unpack(self, parts: Mapping[str, Tensor], grid: Grid, in_features: int) -> QuantizedTensor:
        """The weight from its tensors."""
        signed = parts[""].short() + grid.midpoint
        if bool(((signed < 0) | (signed > grid.code_max)).any()):
            raise FormatError(f"its int8 codes are not all of {grid.bits} bits; the checkpoint contradicts itself.")
        return QuantizedTensor(codes=signed.to(torch.uint8), scale=parts["_scale"], zero=None, grid=grid)


class FloatCodes(CodeLayout):
    """Codes of a float element: FP8 as such under the weight's name, narrower ones packed into bytes.

    Scales that a block or a tensor shares are stored once; powers of two as their exponents, in a byte.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def specs(self, shape: torch.Size, grid: Grid, scale_dtype: torch.dtype) -> Specs:
        """Codes, scales, and the scale of scales."""
        rows, columns = shape
        groups = grid.groups(columns)
        scales = {"tensor": [1], "block": [-(-rows // (grid.group_size or 1)), groups]}
        dtype = packed_scale_dtype(grid) or scale_dtype
        specs = {"_scale": (torch.Size(scales.get(grid.granularity, [rows, groups])), dtype)}
        if grid.tensor_scaled:
            specs["_global_scale"] = (torch.Size([1]), torch.float32)
        if grid.bits == 8:
            return {"": (shape, torch.float8_e4m3fn), **specs}
        return {"_packed": (torch.Size([rows, columns * grid.bits // 8]), torch.uint8), **specs}

    def pack(self, tensor: QuantizedTensor) -> dict[str, Tensor]:
        """The tensors by suffix."""
        grid = tensor.grid
        scale = pack_scale(tensor.scale, grid)
        if grid.granularity in ("tensor", "block"):
            scale = scale[:: grid.group_size or len(scale)].contiguous()
        parts = {"_scale": scale.reshape(1) if grid.granularity == "tensor" else scale}
        if tensor.global_scale is not None:
            parts["_global_scale"] = tensor.global_scale.reshape(1)
        if grid.bits == 8:
            return {"": tensor.codes.view(torch.float8_e4m3fn), **parts}
        return {"_packed": pack_rows(tensor.codes, grid.bits).view(torch.uint8), **parts}

    def unpack(self, parts: Mapping[str, Tensor], grid: Grid, in_features: int) -> QuantizedTensor:
        """The weight from its tensors."""
        if "" in parts:
            codes = parts[""].view(torch.uint8)
            if bool(((codes & 0x7F) == 0x7F).any()):
                raise FormatError("its FP8 codes are not all numbers: some are NaN. Quantize it again.")
        else:
            codes = unpack_rows(parts["_packed"].contiguous().view(torch.int32), grid.bits, in_features)
        scale, rows = unpack_scale(parts["_scale"], grid), len(codes)
        divisor = parts["_global_scale"].float().reshape(1, 1) if grid.tensor_scaled else None
        check_stored_scales(scale, divisor)
        if grid.granularity == "tensor":
            scale = scale.reshape(1, 1).expand(rows, 1).contiguous()
        elif grid.granularity == "block":
            scale = scale.repeat_interleave(grid.group_size or rows, dim=0)[:rows].contiguous()
        return QuantizedTensor(codes=codes, scale=scale, zero=None, grid=grid, global_scale=divisor)


PACK_QUANTIZED, INT_QUANTIZED = PackedIntegers(), IntegerBytes()
FLOAT_QUANTIZED, NAIVE_QUANTIZED = FloatCodes("float-quantized"), FloatCodes("naive-quantized")

#: (element, element of its scales) → layout, of those whose scales lie on a grid.
_SCALED = {
    ("e4m3", "e8m0"): FloatCodes("mxfp8-quantized"),
    ("e2m3", "e8m0"): FloatCodes("mxfp6-pack-quantized"),
    ("e2m1", "e8m0"): FloatCodes("mxfp4-pack-quantized"),
    ("e2m1", "e4m3"): FloatCodes("nvfp4-pack-quantized"),
}
#: Sizes of the groups that readers take with scales of an element.
_GROUPS = {"e8m0": 32, "e4m3": 16}


def layout_of(scheme: Scheme) -> CodeLayout | None:
    """The layout that holds the weight of a scheme, or ``None`` where there is none."""
    grid = scheme.weight
    if grid.superblock is not None:
        return None
    if grid.integers:
        inputs = scheme.activation
        return INT_QUANTIZED if inputs is not None and inputs.integers and inputs.bits == 8 else PACK_QUANTIZED
    if grid.scale is not None:
        found = _SCALED.get((grid.element, grid.scale.element))
        return found if _GROUPS[grid.scale.element] == grid.group_size else None
    if grid.element == "e4m3" and (grid.granularity, grid.group_size) in _FLOAT8_GRAINS:
        return FLOAT_QUANTIZED if scheme.activation is not None else NAIVE_QUANTIZED
    return None


_FLOAT8_GRAINS = {("tensor", None), ("channel", None), ("block", 128)}


def divides_into_bytes(grid: Grid, columns: int) -> bool:
    """Whether rows of so many codes fill whole words, as packed floats have to."""
    return grid.integers or grid.bits == 8 or (columns * grid.bits % 32 == 0 and grid.divides(columns))


def scale_dtype_name(grid: Grid) -> str | None:
    """The ``scale_dtype`` of a config group; ``None`` where scales are floats of the weight's dtype."""
    if grid.scale is None:
        return None
    return "torch.uint8" if grid.scale == POWERS_OF_TWO else "torch.float8_e4m3fn"
