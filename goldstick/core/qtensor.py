"""QuantizedTensor: the one form that algorithms produce, formats store and kernels run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from goldstick.core.element import Element
from goldstick.core.grid import Grid
from goldstick.core.rows import as_rows
from goldstick.errors import QuantizationError


def scale_dtype(weight_dtype: torch.dtype) -> torch.dtype:
    """The dtype scales are stored in: the weight's where it has 16 bits, float32 otherwise."""
    return weight_dtype if weight_dtype in (torch.float16, torch.bfloat16) else torch.float32


@dataclass(frozen=True, kw_only=True)
class QuantizedTensor:
    """Codes with the scales and zeros that turn them back into numbers.

    w[…, o, i] ≈ value(codes[…, o, i]) · scale[…, o, g], g = i // group width. The value is code − zero[…, o, g] on a
    grid of integers, and otherwise what the element's table says. Scales that have a scale in their turn are divided by
    it. In superblocks of S weights w ≈ value · scale · d[…, o, i // S] − minimum · d'[…, o, i // S], where the value of
    a symmetric grid is code − 2^(bits−1) and that of another, which alone has minimums, the code itself. Leading
    dimensions are independent matrices (the experts of a mixture). With an ``input_order`` p, what stands at i is
    w[…, o, p[i]]: columns lie in the order of their groups, which take their inputs from anywhere in the row.

    Attributes:
        codes: uint8 [..., out, in], each in 0 … 2^bits − 1.
        scale: float [..., out, groups], in the dtype of the layer. A block or a tensor that shares a scale has it in
            each of its rows.
        zero: ``None`` for a symmetric grid (the zero is 2^(bits−1)), otherwise float [..., out, groups], perhaps
            fractional; whole numbers for grids that formats with integer zeros can hold. In superblocks the minimums,
            whole numbers.
        grid: The grid the codes live on.
        global_scale: float32 [..., 1, 1] or [..., out, 1], what the scales of a matrix are divided by; in superblocks
            float32 [..., out, 1 or 2, superblocks], d and, of grids with minimums, d'. ``None`` where scales stand for
            themselves.
        input_order: p, integers [in], each input once; ``None`` where columns lie as the inputs come. Only files of
            GPTQ's act-order have one.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    grid: Grid
    input_order: Tensor | None = None
    global_scale: Tensor | None = None

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
        if (self.grid.tensor_scaled or self.grid.superblock is not None) != (self.global_scale is not None):
            raise QuantizationError(f"The grid {self.grid.label} and a scale of its scales do not go together.")
        if self.grid.superblock is not None and self.global_scale is not None:
            blocks = (*self.codes.shape[:-1], 1 + self.grid.minimums, in_features // self.grid.superblock)
            if self.global_scale.shape != blocks:
                raise QuantizationError(
                    f"Codes {tuple(self.codes.shape)} on the grid {self.grid.label} need scales of scales {blocks}, "
                    f"not {tuple(self.global_scale.shape)}."
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
        is what compressed-tensors does and makes the results of both bit-equal. Of float elements the product is one of
        float32 (or float64), rounded to ``dtype``; so is what superblocks give, whose products are exact in float32.
        """
        dtype = dtype or self.scale.dtype
        width = self.grid.group_width(self.in_features)
        element = self.grid.float_element
        if self.grid.superblock is not None:
            return in_place(self._superblock_numbers(width, dtype), self.input_order)
        if element is not None:
            return in_place(self._float_numbers(element, width, dtype), self.input_order)
        zero = self.grid.midpoint if self.zero is None else self._spread(self.zero.to(dtype), width)
        values = self.codes.to(dtype)
        values.sub_(zero).mul_(self._spread(self.scale.to(dtype), width))
        return in_place(values, self.input_order)

    def _float_numbers(self, element: Element, width: int, dtype: torch.dtype) -> Tensor:
        # A divided scale is no number of 16 bits, nor is every value: the product is rounded to the dtype once.
        wide = torch.promote_types(dtype, torch.float32)
        return element.numbers(self.codes, wide).mul_(self._spread(self.steps().to(wide), width)).to(dtype)

    def _superblock_numbers(self, width: int, dtype: torch.dtype) -> Tensor:
        wide = torch.promote_types(dtype, torch.float32)
        values = unsigned_values(self.codes, self.grid, wide).mul_(self._spread(self.steps().to(wide), width))
        minimums = self.shifts()
        return (values if minimums is None else values.sub_(self._spread(minimums.to(wide), width))).to(dtype)

    def steps(self) -> Tensor:
        """What values are multiplied by, [..., out, groups]: scales, times or divided by their own scale if any."""
        if self.global_scale is None:
            return self.scale
        if self.grid.superblock is None:
            return self.scale.float() / self.global_scale
        return self.scale.float() * self._of_groups(0)

    def shifts(self) -> Tensor | None:
        """Zeros, or of superblocks the minimums that are subtracted, float32 [..., out, groups]; ``None`` without."""
        if self.zero is None or not self.grid.minimums:
            return self.zero
        return self.zero.float() * self._of_groups(1)

    def _of_groups(self, plane: int) -> Tensor:
        """Scales of scales, one for each group; exact products with integers of 8 bits, being float16 numbers."""
        assert self.global_scale is not None
        blocks = self.global_scale[..., plane, :]
        return blocks.repeat_interleave(self.scale.shape[-1] // blocks.shape[-1], dim=-1)

    def rows(self, part: slice | Tensor) -> QuantizedTensor:
        """Some rows of a matrix: those from one to another, or of indices int64 [rows]."""
        zero = None if self.zero is None else self.zero[part]
        divisor = self.global_scale
        if divisor is not None and (self.grid.superblock is not None or len(divisor) > 1):
            divisor = divisor[part]
        return replace(self, codes=self.codes[part], scale=self.scale[part], zero=zero, global_scale=divisor)

    def flattened(self) -> QuantizedTensor:
        """All rows of several matrices as those of one."""
        divisor = self.global_scale
        if divisor is not None and self.grid.superblock is not None:
            divisor = divisor.flatten(0, -3)
        elif divisor is not None:
            divisor = as_rows(divisor.expand(*self.codes.shape[:-1], 1))
        zero = None if self.zero is None else as_rows(self.zero)
        return replace(self, codes=as_rows(self.codes), scale=as_rows(self.scale), zero=zero, global_scale=divisor)

    def _spread(self, values: Tensor, width: int) -> Tensor:
        if values.shape[-1] == 1:
            return values
        return values.repeat_interleave(width, dim=-1)[..., : self.in_features]


def joined(pieces: Sequence[QuantizedTensor], shape: torch.Size, grid: Grid) -> QuantizedTensor:
    """One tensor of a shape [..., out, in] from consecutive pieces of its rows."""
    lead = shape[:-1]
    zeros = [piece.zero for piece in pieces if piece.zero is not None]
    scales = [piece.global_scale for piece in pieces if piece.global_scale is not None]
    divisor = None
    if scales and grid.superblock is not None:
        divisor = torch.cat(scales).reshape(*lead, *scales[0].shape[1:])
    elif scales:
        each = scales[:: max(1, len(scales) // max(1, math.prod(shape[:-2])))]  # one of the pieces of a matrix
        divisor = torch.stack(each).reshape(*shape[:-2], 1, 1)
    return QuantizedTensor(
        codes=torch.cat([piece.codes for piece in pieces]).reshape(shape),
        scale=torch.cat([piece.scale for piece in pieces]).reshape(*lead, -1),
        zero=torch.cat(zeros).reshape(*lead, -1) if zeros else None,
        grid=grid,
        global_scale=divisor,
    )


def in_place(columns: Tensor, input_order: Tensor | None) -> Tensor:
    """Columns [..., in] of an input order p back where they belong: result[..., p[i]] = columns[..., i]."""
    return columns if input_order is None else columns[..., input_order.argsort()]


def unsigned_values(codes: Tensor, grid: Grid, dtype: torch.dtype = torch.float32) -> Tensor:
    """What codes of superblocks stand for in units of the step: numbers of the table, codes or code − 2^(bits−1)."""
    element = grid.float_element
    if element is not None:
        return element.numbers(codes, dtype)
    return codes.to(dtype).sub_(grid.midpoint if grid.symmetric else 0)


def _each_once(order: Tensor, count: int) -> bool:
    if order.dtype not in (torch.int32, torch.int64) or order.shape != (count,):
        return False
    return order.is_meta or torch.equal(order.sort().values, torch.arange(count).to(order))


def quantize_on_grid(
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    grid: Grid,
    global_scale: Tensor | None = None,
    *,
    own: bool = False,
) -> QuantizedTensor:
    """Round ``weight`` to the nearest codes of a given scale and zero.

    code = clamp(round(w / s + zero), 0, 2^bits − 1), rounding half to even, in float32; on a grid of floats the code of
    the value nearest to w / s, a quotient in their own dtypes. The scale is used in its own dtype's values, which are
    those that will be stored. A zero scale gives the code nearest to zero. The sum is taken with the zero of signed
    codes, zero − 2^(bits−1), as compressed-tensors takes it: codes then equal its own bit for bit, at ties too.

    Args:
        weight: float [..., out, in].
        scale: float [..., out, groups].
        zero: ``None`` or float [..., out, groups].
        grid: The grid.
        global_scale: float32 [..., 1, 1], what scales are divided by, or what superblocks have; ``None`` where scales
            stand for themselves.
        own: Whether quotients of integers are taken in the dtypes of weight and scale, too, as compressed-tensors does.

    Raises:
        QuantizationError: The group size does not divide ``in``, or the shapes do not fit each other.
    """
    grouped = in_groups(weight.float() if grid.integers and not own else weight, grid)  # [..., out, groups, width]
    codes = torch.zeros(weight.shape, dtype=torch.uint8, device=weight.device)
    ranges = QuantizedTensor(codes=codes, scale=scale, zero=zero, grid=grid, global_scale=global_scale)
    codes = codes_on_grid(grouped, ranges.steps(), ranges.shifts(), grid).to(torch.uint8).flatten(-2)
    return replace(ranges, codes=codes[..., : weight.shape[-1]])


def codes_on_grid(grouped: Tensor, steps: Tensor, zero: Tensor | None, grid: Grid) -> Tensor:
    """The codes of :func:`quantize_on_grid` as whole float32 numbers, [..., groups, width] like ``grouped``.

    In superblocks with minimums, which then stand in the place of zeros: clamp(round((w + m) / s), 0, 2^bits − 1).
    """
    if grid.minimums and zero is not None:
        return codes_above_minimums(grouped, steps, zero, grid.code_max)
    ratio = _ratio(grouped, steps)
    if (element := grid.float_element) is not None:
        return element.round(ratio).float()
    if zero is not None:
        ratio += zero.float().unsqueeze(-1) - grid.midpoint
    return ratio.round_().add_(grid.midpoint).clamp_(0, grid.code_max)


def codes_above_minimums(grouped: Tensor, steps: Tensor, minimum: Tensor, code_max: int) -> Tensor:
    """clamp(round((w + minimum) / s), 0, code_max), whole float32 numbers [..., groups, width]."""
    return _ratio(grouped + minimum.unsqueeze(-1), steps).round_().clamp_(0, code_max)


def values_on_grid(grouped: Tensor, steps: Tensor, zero: Tensor | None, grid: Grid) -> Tensor:
    """What the codes of :func:`codes_on_grid` stand for in units of the step, float32 [..., groups, width]."""
    if (element := grid.float_element) is not None:
        return element.numbers(element.round(_ratio(grouped, steps)))
    return codes_on_grid(grouped, steps, zero, grid).sub_(grid.midpoint if zero is None else zero.unsqueeze(-1))


def _ratio(grouped: Tensor, steps: Tensor) -> Tensor:
    step = steps.unsqueeze(-1)
    if step.shape[:-1] != grouped.shape[:-1]:
        raise QuantizationError(f"Groups {tuple(grouped.shape)} do not fit scales {tuple(steps.shape)}.")
    ratio, none = grouped / step, step == 0
    if ratio.device.type == "cpu" and not bool(none.any()):  # steps are few, so looking costs less than another pass
        return ratio
    return torch.where(none, torch.zeros_like(grouped), ratio)


def in_groups(values: Tensor, grid: Grid) -> Tensor:
    """Rows [..., in] cut into what shares a scale, [..., groups, width]; zeros fill the last block up.

    Raises:
        QuantizationError: The group size does not divide ``in``.
    """
    columns = values.shape[-1]
    if not grid.divides(columns):
        raise QuantizationError(
            f"Rows of {columns} values do not divide into groups of {grid.group_size}; choose a group size "
            "that divides, or one scale per channel."
        )
    width = grid.group_width(columns)
    if columns % width:
        values = torch.nn.functional.pad(values, (0, -columns % width))
    return values.reshape(*values.shape[:-1], grid.groups(columns), width)
