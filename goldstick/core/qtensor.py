"""QuantizedTensor: the one form that algorithms produce, formats store and kernels run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.errors import QuantizationError


def scale_dtype(weight_dtype: torch.dtype) -> torch.dtype:
    """The dtype scales are stored in: the weight's where it has 16 bits, float32 otherwise."""
    return weight_dtype if weight_dtype in (torch.float16, torch.bfloat16) else torch.float32


@dataclass(frozen=True, kw_only=True)
class QuantizedTensor:
    """Integer codes with the scales and zeros that turn them back into numbers.

    w[…, o, i] ≈ (codes[…, o, i] − zero[…, o, g]) · scale[…, o, g], g = i // group width. Leading dimensions are
    independent matrices (the experts of a mixture). With an ``input_order`` p, what stands at i is w[…, o, p[i]]: the
    columns lie in the order of their groups, which take their inputs from anywhere in the row.

    Attributes:
        codes: uint8 [..., out, in], each in 0 … 2^bits − 1.
        scale: float [..., out, groups], in the dtype the kernels and files will use.
        zero: ``None`` for a symmetric grid (the zero is 2^(bits−1)), otherwise float [..., out, groups], perhaps
            fractional; whole numbers for grids that formats with integer zeros can hold.
        grid: The grid the codes live on.
        input_order: p, integers [in], each input once; ``None`` where columns lie as the inputs come. Only files of
            GPTQ's act-order have one.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    grid: Grid
    input_order: Tensor | None = None

    def __post_init__(self) -> None:
        out_features, in_features = self.codes.shape[-2:]
        expected = (*self.codes.shape[:-2], out_features, self.grid.groups(in_features))
        if self.codes.dtype != torch.uint8 or not self.scale.is_floating_point():
            raise QuantizationError(
                f"Codes are uint8 and scales floating point, not {self.codes.dtype} and {self.scale.dtype}."
            )
        if tuple(self.scale.shape) != expected or (self.zero is not None and self.zero.shape != self.scale.shape):
            zero_shape = None if self.zero is None else tuple(self.zero.shape)
            raise QuantizationError(
                f"Codes {tuple(self.codes.shape)} on the grid {self.grid.label} need scales and zeros of shape "
                f"{expected}, not {tuple(self.scale.shape)} and {zero_shape}."
            )
        if self.grid.symmetric != (self.zero is None):
            raise QuantizationError("A symmetric grid has no zeros of its own, an asymmetric one always has them.")
        if self.input_order is not None and not _each_once(self.input_order, in_features):
            raise QuantizationError(f"The order of {in_features} inputs names each of them once; this one does not.")

    @property
    def in_features(self) -> int:
        """Length of a row."""
        return self.codes.shape[-1]

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The numbers the codes stand for, [..., out, in].

        Computed as (codes − zero) · scale with both operations in ``dtype`` (the scale's dtype by default), which
        is what compressed-tensors does and makes the results of both bit-equal.
        """
        dtype = dtype or self.scale.dtype
        width = self.grid.group_width(self.in_features)
        zero = self.grid.midpoint if self.zero is None else self._spread(self.zero.to(dtype), width)
        values = self.codes.to(dtype)
        values.sub_(zero).mul_(self._spread(self.scale.to(dtype), width))
        return in_place(values, self.input_order)

    def rows(self, part: slice) -> QuantizedTensor:
        """Some rows of a matrix."""
        zero = None if self.zero is None else self.zero[part]
        return dataclasses.replace(self, codes=self.codes[part], scale=self.scale[part], zero=zero)

    def _spread(self, values: Tensor, width: int) -> Tensor:
        if values.shape[-1] == 1:
            return values
        return values.repeat_interleave(width, dim=-1)[..., : self.in_features]


def in_place(columns: Tensor, input_order: Tensor | None) -> Tensor:
    """Columns [..., in] of an input order p back where they belong: result[..., p[i]] = columns[..., i]."""
    return columns if input_order is None else columns[..., input_order.argsort()]


def _each_once(order: Tensor, count: int) -> bool:
    if order.dtype not in (torch.int32, torch.int64) or order.shape != (count,):
        return False
    return order.is_meta or torch.equal(order.sort().values, torch.arange(count).to(order))


def quantize_on_grid(weight: Tensor, scale: Tensor, zero: Tensor | None, grid: Grid) -> QuantizedTensor:
    """Round ``weight`` to the nearest codes of a given scale and zero.

    code = clamp(round(w / scale + zero), 0, 2^bits − 1), rounding half to even, in float32. The scale is used in its
    own dtype's values, so the codes are right for the numbers that will be stored. A zero scale gives the code
    nearest to zero. The sum is taken with the zero of signed codes, zero − 2^(bits−1), as compressed-tensors takes it:
    codes then equal its own bit for bit, at ties too.

    Args:
        weight: float [..., out, in].
        scale: float [..., out, groups].
        zero: ``None`` or float [..., out, groups].
        grid: The grid.

    Raises:
        QuantizationError: The group size does not divide ``in``, or the shapes do not fit each other.
    """
    grouped = in_groups(weight.float(), grid)  # [..., out, groups, width]
    codes = codes_on_grid(grouped, scale, zero, grid).to(torch.uint8).flatten(-2)
    return QuantizedTensor(codes=codes, scale=scale, zero=zero, grid=grid)


def codes_on_grid(grouped: Tensor, scale: Tensor, zero: Tensor | None, grid: Grid) -> Tensor:
    """The codes of :func:`quantize_on_grid` as whole float32 numbers, [..., groups, width] like ``grouped``."""
    step = scale.float().unsqueeze(-1)
    if step.shape[:-1] != grouped.shape[:-1]:
        raise QuantizationError(f"Groups {tuple(grouped.shape)} do not fit scales {tuple(scale.shape)}.")
    ratio = torch.where(step == 0, torch.zeros_like(grouped), grouped / step)
    if zero is not None:
        ratio += zero.float().unsqueeze(-1) - grid.midpoint
    return ratio.round_().add_(grid.midpoint).clamp_(0, grid.code_max)


def in_groups(values: Tensor, grid: Grid) -> Tensor:
    """Rows [..., in] cut into what shares a scale, [..., groups, width].

    Raises:
        QuantizationError: The group size does not divide ``in``.
    """
    if not grid.divides(values.shape[-1]):
        raise QuantizationError(
            f"Rows of {values.shape[-1]} values do not divide into groups of {grid.group_size}; choose a group size "
            "that divides, or one scale per channel."
        )
    width = grid.group_width(values.shape[-1])
    return values.reshape(*values.shape[:-1], grid.groups(values.shape[-1]), width)
