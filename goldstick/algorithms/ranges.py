"""Range searches: the scale and zero of each row or group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from goldstick.algorithms.column_importance import OF_GGML, importance_of_matrices, relative
from goldstick.algorithms.column_importance import RangeSearch as RangeSearch
from goldstick.algorithms.ggml.rounding import quantize_as_ggml
from goldstick.algorithms.range_error import deviation, least_error_range
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor, in_groups, joined, quantize_on_grid, scale_dtype
from goldstick.core.rows import all_finite, as_rows, row_chunks
from goldstick.core.stored_scale import global_scale_for, stored_scale
from goldstick.errors import QuantizationError

Range = tuple[Tensor, Tensor | None]  # scale, zero: each [rows, groups]

_SHRINK_STEPS = 80
#: Ratios of ranges whose scales are FP8 numbers, and of those whose scales are powers of two.
_WIDENED = (1.0, 1.5, 1.375, 1.25, 1.125, *(1 - step / 40 for step in range(1, 21)))
_DOUBLED = (1.0, 2.0, 0.5, 0.25)
#: Subnormal: rounded by 1/32 at most, which costs less than a larger scale.
_LEAST_OF_FLOAT16 = 2.0**-20
_HQQ_NORM = 0.7
_HQQ_BETA = 10.0
_HQQ_BETA_GROWTH = 1.01
_HQQ_ITERATIONS = 20


@dataclass(frozen=True)
class ScaleDtype:
    """How the scales of a tensor are kept.

    Attributes:
        dtype: Their dtype.
        global_scale: What they are divided by, float32 []; ``None`` where they stand for themselves.
        own: The dtype of the weight, for quotients that are to be those of compressed-tensors; ``None``: float32.
    """

    dtype: torch.dtype
    global_scale: Tensor | None = None
    own: torch.dtype | None = None

    def steps(self, scale: Tensor) -> Tensor:
        """What values are multiplied by."""
        return scale if self.global_scale is None else scale.float() / self.global_scale


#: From values [rows, groups, width], their grid and what scales are kept in, to a range.
FindRange = Callable[[Tensor, Grid, ScaleDtype], Range]


def quantize_with_search(
    weight: Tensor,
    grid: Grid,
    search: RangeSearch,
    importance: Tensor | None = None,
    largest: Tensor | None = None,
    *,
    plain: bool = False,
) -> QuantizedTensor:
    """Round ``weight`` [..., out, in] to ``grid`` with ranges from ``search``, a few rows at a time.

    The scale is stored in the weight's dtype (float32 for a float64 weight) and rounded to it before any code is
    computed.

    Args:
        weight: float [..., out, in].
        grid: What it is rounded to.
        search: Where scales and zeros come from. Superblocks have the search of ggml, whatever this says.
        importance: For the searches ``imatrix`` and ``ggml-imatrix``, and for them alone: what the error of each column
            counts, 0 or more, float [in], or [..., in] with one row for each matrix. A group in which nothing counts is
            searched as if all columns counted alike.
        largest: For grids whose scales have a scale, the largest magnitude that this is made for, float [..., 1, 1];
            that of the weight where ``None``.
        plain: Whether scales and codes of symmetric grids are to be those of compressed-tensors, bit for bit: quotients
            are taken in the weight's own dtype, and no room is left for a search.

    Raises:
        QuantizationError: The weight holds NaN or infinity, a scale does not fit its dtype, the group size does not
            divide ``in``, or the importance does not fit the weight or the search.
    """
    copies = 4
    if search in ("mse", "imatrix"):  # the scales of all candidates are there at once
        copies += 4 * _SHRINK_STEPS // grid.group_width(weight.shape[-1])
    columns = importance_of_matrices(weight, importance, search)
    if search in OF_GGML or grid.superblock is not None:
        return quantize_as_ggml(weight, grid, columns)
    if columns is None:
        return quantize_with_ranges(weight, grid, _SEARCHES[search], copies, largest, plain=plain)
    matrices = weight.reshape(-1, *weight.shape[-2:]) if weight.ndim > 2 else weight.unsqueeze(0)
    pieces = []
    for matrix, counts in zip(matrices, columns, strict=True):
        weighted = partial(mse, importance=relative(in_groups(counts.to(weight.device), grid)))
        pieces.append(quantize_with_ranges(matrix, grid, weighted, copies, largest))
    return joined(pieces, weight.shape, grid)


def quantize_with_ranges(
    weight: Tensor,
    grid: Grid,
    search: FindRange,
    copies: int = 4,
    largest: Tensor | None = None,
    *,
    plain: bool = False,
) -> QuantizedTensor:
    """:func:`quantize_with_search` with any function that finds ranges; superblocks have a search of their own.

    Args:
        weight: float [..., out, in].
        grid: What it is rounded to.
        search: Finds the ranges of some rows.
        copies: How many arrays of the size of those rows it needs; fewer rows are taken at a time for more.
        largest: As in :func:`quantize_with_search`.
        plain: As in :func:`quantize_with_search`.
    """
    if grid.superblock is not None:
        return quantize_as_ggml(weight, grid)
    rows = as_rows(weight)
    kept = ScaleDtype(scale_dtype(weight.dtype), own=weight.dtype if plain and grid.symmetric else None)
    if not (grid.tensor_scaled or grid.rows_share_scales):
        pieces = [_quantize_rows(rows[part], grid, search, kept) for part in row_chunks(rows, copies)]
        return joined(pieces, weight.shape, grid)
    pieces = []
    for index, matrix in enumerate(rows.reshape(-1, *weight.shape[-2:])):
        if grid.tensor_scaled:
            reach = matrix.abs().max() if largest is None else largest.flatten()[index].to(matrix.device)
            reach = reach if plain else reach.float()
            kept = replace(kept, global_scale=global_scale_for(reach, grid, room=not plain))
        tall = len(matrix) if grid.granularity == "tensor" else grid.group_size or 1
        tall = 1 if grid.granularity == "group" else tall
        pieces += [_quantize_rows(matrix[part], grid, search, kept, tall) for part in row_chunks(matrix, copies, tall)]
    return joined(pieces, weight.shape, grid)


def _quantize_rows(rows: Tensor, grid: Grid, search: FindRange, kept: ScaleDtype, tall: int = 1) -> QuantizedTensor:
    """Some rows, ``tall`` of which share their scales."""
    if not all_finite(rows):
        bad = int((~torch.isfinite(rows)).sum())
        raise QuantizationError(f"{bad} values of the weight are NaN or infinite.")
    grouped = in_groups(rows.float(), grid)  # [rows, groups, width]
    if tall == 1:
        scale, zero = search(grouped, grid, kept)
    else:
        whole = torch.nn.functional.pad(grouped, (0, 0, 0, 0, 0, -len(rows) % tall))
        blocks = whole.reshape(-1, tall, *whole.shape[1:]).transpose(1, 2).flatten(-2)  # [blocks, groups, tall · width]
        scale, zero = search(blocks, grid, kept)
        scale = scale.repeat_interleave(tall, dim=0)[: len(rows)]
    divisor = None if kept.global_scale is None else kept.global_scale.reshape(1, 1)
    own = kept.own is not None
    return quantize_on_grid(rows if own else rows.float(), scale, zero, grid, divisor, own=own)


def minmax(grouped: Tensor, grid: Grid, kept: ScaleDtype) -> Range:
    """The range of the values themselves.

    Symmetric: s = max|w| / ((2^b − 1) / 2). Asymmetric: s = (max − min) / (2^b − 1) over a range that contains 0,
    z = round(−min / s).

    Args:
        grouped: float32 [rows, groups, width].
        grid: Bits and symmetry.
        kept: What scales are rounded to.
    """
    low, high = _ends(grouped, grid)
    return _range(low, high, grid, kept)


def mse(grouped: Tensor, grid: Grid, kept: ScaleDtype, importance: Tensor | None = None) -> Range:
    """The shrunken range with the least Σ importance · |ŵ − w|^2.5, of 80 from 100 % down to 21 %.

    Among scales that lie on a grid in their turn: the powers of two next to that of ``minmax``; the FP8 numbers of
    ranges from 150 % (2512.02010) down to 50 %.

    The search of GPTQ's reference implementation (arXiv 2210.17323): both ends are multiplied by 1 − i/100. Its power
    is 2.4; why it is 2.5 here says :func:`rounding_error`.

    Args:
        grouped: float32 [rows, groups, width].
        grid: Bits and symmetry.
        kept: What scales are rounded to.
        importance: float32 [groups, width], 0 or more, or ``None`` if all columns count alike. With E[x²] of each
            column ("imatrix") the error is near that of the layer's output.
    """
    low, high = _ends(grouped, grid)
    if importance is not None and importance.shape[-1] != grouped.shape[-1]:  # rows that share a scale
        importance = importance.repeat(1, grouped.shape[-1] // importance.shape[-1])
    ratios = torch.tensor(_ratios(grid), dtype=grouped.dtype, device=grouped.device)
    scale, zero = _range(low.unsqueeze(-1) * ratios, high.unsqueeze(-1) * ratios, grid, kept)
    best = least_error_range(grouped, kept.steps(scale).float(), zero, importance, grid).unsqueeze(-1)
    return scale.gather(-1, best).squeeze(-1), None if zero is None else zero.gather(-1, best).squeeze(-1)


def shrunken(
    grouped: Tensor, grid: Grid, kept: ScaleDtype, ratios: Sequence[float], error: Callable[[Tensor], Tensor]
) -> Range:
    """For each group the range, both ends multiplied by one of ``ratios``, of least error; the first of equals.

    Args:
        grouped: float32 [rows, groups, width].
        grid: Bits and symmetry.
        kept: What scales are rounded to.
        ratios: What to try, the first first.
        error: From ŵ − w, float32 [rows, groups, width] and free to be overwritten, to [rows, groups].
    """
    low, high = _ends(grouped, grid)
    best_scale, best_zero = _range(low * ratios[0], high * ratios[0], grid, kept)
    best = error(deviation(grouped, kept.steps(best_scale), best_zero, grid))
    for ratio in ratios[1:]:
        scale, zero = _range(low * ratio, high * ratio, grid, kept)
        found = error(deviation(grouped, kept.steps(scale), zero, grid))
        better = found < best
        best = torch.where(better, found, best)
        best_scale = torch.where(better, scale, best_scale)
        if zero is not None and best_zero is not None:
            best_zero = torch.where(better, zero, best_zero)
    return best_scale, best_zero


def hqq(grouped: Tensor, grid: Grid, kept: ScaleDtype) -> Range:
    """Half-quadratic zeros: with the scale fixed, z minimises Σ|w − ŵ|^0.7 (HQQ, Badri and Shaji 2023).

    Alternates a shrinkage of the error, e = sign(r)·relu(|r| − |r|^(p−1) / β), with the closed form
    z = mean(q − (w − e) / s) over the group, β growing, and keeps each group's z of least mean |r|. Zeros are real
    numbers. (The reference stops as soon as the mean over the whole matrix rises. Kept by group, the error is a little
    lower and does not depend on how many rows are worked on at a time.)
    """
    scale, zero = minmax(grouped, grid, kept)
    if zero is None:
        raise QuantizationError("The hqq search moves zeros, which a symmetric grid does not have; use mse or -asym.")
    inverse = 1 / scale.float().unsqueeze(-1)
    current = zero.float().unsqueeze(-1)
    best_zero, beta = current, _HQQ_BETA
    best_error = torch.full_like(current, torch.inf)  # [rows, groups, 1]
    for _ in range(_HQQ_ITERATIONS):
        codes = (grouped * inverse + current).round().clamp(0, grid.code_max)
        residual = grouped - (codes - current) / inverse
        size = residual.abs()
        error = size.mean(-1, keepdim=True)
        better = error < best_error
        best_zero = torch.where(better, current, best_zero)
        best_error = torch.where(better, error, best_error)
        shrunk = residual.sign() * torch.relu(size - size.pow(_HQQ_NORM - 1) / beta)
        current = (codes - (grouped - shrunk) * inverse).mean(-1, keepdim=True)
        beta *= _HQQ_BETA_GROWTH
    return scale, best_zero.squeeze(-1)


_SEARCHES: dict[RangeSearch, FindRange] = {
    "minmax": minmax,
    "mse": mse,
    "hqq": hqq,
}


def _ends(grouped: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    if grid.symmetric:
        high = torch.maximum(-low, high)
        low = -high
    return low, high


def _ratios(grid: Grid) -> tuple[float, ...]:
    """What the search multiplies a range by."""
    if grid.scale is None:
        return tuple(1 - step / 100 for step in range(_SHRINK_STEPS))
    return _WIDENED if grid.tensor_scaled else _DOUBLED


def _least_scale(dtype: torch.dtype) -> float:
    return _LEAST_OF_FLOAT16 if dtype == torch.float16 else torch.finfo(dtype).tiny


def _range(low: Tensor, high: Tensor, grid: Grid, kept: ScaleDtype) -> Range:
    dtype = kept.dtype
    if not grid.integers:
        return stored_scale(high.to(kept.own or high.dtype), grid, dtype, kept.global_scale), None
    if kept.own is not None:
        scale = high.to(kept.own) / grid.steps_to_end
        return torch.where(scale == 0, torch.finfo(dtype).eps, scale).to(dtype), None
    span = (high - low) / grid.code_max
    # A group of zeros gets the scale 1: its codes are then its zero, exactly.
    scale = torch.where(span == 0, torch.ones_like(span), span.clamp(min=_least_scale(dtype))).to(dtype)
    if not all_finite(scale):
        raise QuantizationError(f"A scale of {float(span.max()):.3g} does not fit {dtype}; load the model in float32.")
    if grid.symmetric:
        return scale, None
    return scale, (-low / scale.float()).round().clamp(0, grid.code_max)
