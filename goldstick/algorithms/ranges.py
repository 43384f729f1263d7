"""Range searches: the scale and zero of each row or group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from goldstick.algorithms.range_error import deviation, least_error_range
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor, in_groups, quantize_on_grid, scale_dtype
from goldstick.core.rows import as_rows, row_chunks
from goldstick.errors import QuantizationError

RangeSearch = Literal["minmax", "mse", "imatrix", "hqq"]
Range = tuple[Tensor, Tensor | None]  # scale, zero: each [rows, groups]

#: From values [rows, groups, width], their grid and the dtype that scales are stored in, to a range.
FindRange = Callable[[Tensor, Grid, torch.dtype], Range]

_SHRINK_STEPS = 80
_HQQ_NORM = 0.7
_HQQ_BETA = 10.0
_HQQ_BETA_GROWTH = 1.01
_HQQ_ITERATIONS = 20


def quantize_with_search(
    weight: Tensor, grid: Grid, search: RangeSearch, importance: Tensor | None = None
) -> QuantizedTensor:
    """Round ``weight`` [..., out, in] to ``grid`` with ranges from ``search``, a few rows at a time.

    The scale is stored in the weight's dtype (float32 for a float64 weight) and rounded to it before any code is
    computed.

    Args:
        weight: float [..., out, in].
        grid: What it is rounded to.
        search: Where scales and zeros come from.
        importance: For the search ``imatrix``, and for it alone: what the error of each column counts, 0 or more,
            float [in], or [..., in] with one row for each matrix. A group in which nothing counts is searched as if
            all columns counted alike.

    Raises:
        QuantizationError: The weight holds NaN or infinity, a scale does not fit its dtype, the group size does not
            divide ``in``, or the importance does not fit the weight or the search.
    """
    copies = 4
    if search in ("mse", "imatrix"):  # the scales of all candidates are there at once
        copies += 4 * _SHRINK_STEPS // grid.group_width(weight.shape[-1])
    columns = _importance_of_matrices(weight, importance, search)
    if columns is None:
        return quantize_with_ranges(weight, grid, _SEARCHES[search], copies)
    matrices = weight.reshape(-1, *weight.shape[-2:]) if weight.ndim > 2 else weight.unsqueeze(0)
    pieces = []
    for matrix, counts in zip(matrices, columns, strict=True):
        weighted = partial(mse, importance=_relative(in_groups(counts.to(weight.device), grid)))
        pieces.append(quantize_with_ranges(matrix, grid, weighted, copies))
    return _joined(pieces, weight.shape, grid)


def quantize_with_ranges(weight: Tensor, grid: Grid, search: FindRange, copies: int = 4) -> QuantizedTensor:
    """:func:`quantize_with_search` with any function that finds ranges.

    Args:
        weight: float [..., out, in].
        grid: What it is rounded to.
        search: Finds the ranges of some rows.
        copies: How many arrays of the size of those rows it needs; fewer rows are taken at a time for more.
    """
    rows = as_rows(weight)
    pieces = [_quantize_rows(rows[part], grid, search) for part in row_chunks(rows, copies)]
    return _joined(pieces, weight.shape, grid)


def _joined(pieces: Sequence[QuantizedTensor], shape: torch.Size, grid: Grid) -> QuantizedTensor:
    """One tensor of a shape from consecutive pieces of its rows."""
    lead = shape[:-1]
    zeros = [piece.zero for piece in pieces if piece.zero is not None]
    return QuantizedTensor(
        codes=torch.cat([piece.codes for piece in pieces]).reshape(shape),
        scale=torch.cat([piece.scale for piece in pieces]).reshape(*lead, -1),
        zero=torch.cat(zeros).reshape(*lead, -1) if zeros else None,
        grid=grid,
    )


def _quantize_rows(rows: Tensor, grid: Grid, search: FindRange) -> QuantizedTensor:
    if not torch.isfinite(rows).all():
        bad = int((~torch.isfinite(rows)).sum())
        raise QuantizationError(f"{bad} values of the weight are NaN or infinite.")
    dtype = scale_dtype(rows.dtype)
    grouped = in_groups(rows.float(), grid)  # [rows, groups, width]
    scale, zero = search(grouped, grid, dtype)
    return quantize_on_grid(rows, scale, zero, grid)


def minmax(grouped: Tensor, grid: Grid, dtype: torch.dtype) -> Range:
    """The range of the values themselves.

    Symmetric: s = max|w| / ((2^b − 1) / 2). Asymmetric: s = (max − min) / (2^b − 1) over a range that contains 0,
    z = round(−min / s).

    Args:
        grouped: float32 [rows, groups, width].
        grid: Bits and symmetry.
        dtype: What scales are rounded to.
    """
    low, high = _ends(grouped, grid)
    return _range(low, high, grid, dtype)


def mse(grouped: Tensor, grid: Grid, dtype: torch.dtype, importance: Tensor | None = None) -> Range:
    """The shrunken range with the least Σ importance · |ŵ − w|^2.5, of 80 from 100 % down to 21 %.

    The search of GPTQ's reference implementation (arXiv 2210.17323): both ends are multiplied by 1 − i/100. Its power
    is 2.4; why it is 2.5 here says :func:`rounding_error`.

    Args:
        grouped: float32 [rows, groups, width].
        grid: Bits and symmetry.
        dtype: What scales are rounded to.
        importance: float32 [groups, width], 0 or more, or ``None`` if all columns count alike. With E[x²] of each
            column ("imatrix") the error is near that of the layer's output.
    """
    low, high = _ends(grouped, grid)
    ratios = torch.tensor([1 - step / 100 for step in range(_SHRINK_STEPS)], device=grouped.device)
    scale, zero = _range(low.unsqueeze(-1) * ratios, high.unsqueeze(-1) * ratios, grid, dtype)
    best = least_error_range(grouped, scale.float(), zero, importance, grid).unsqueeze(-1)
    return scale.gather(-1, best).squeeze(-1), None if zero is None else zero.gather(-1, best).squeeze(-1)


def shrunken(
    grouped: Tensor, grid: Grid, dtype: torch.dtype, ratios: Sequence[float], error: Callable[[Tensor], Tensor]
) -> Range:
    """For each group the range, both ends multiplied by one of ``ratios``, of least error; the first of equals.

    Args:
        grouped: float32 [rows, groups, width].
        grid: Bits and symmetry.
        dtype: What scales are rounded to.
        ratios: What to try, the first first.
        error: From ŵ − w, float32 [rows, groups, width] and free to be overwritten, to [rows, groups].
    """
    low, high = _ends(grouped, grid)
    best_scale, best_zero = _range(low * ratios[0], high * ratios[0], grid, dtype)
    best = error(deviation(grouped, best_scale, best_zero, grid))
    for ratio in ratios[1:]:
        scale, zero = _range(low * ratio, high * ratio, grid, dtype)
        found = error(deviation(grouped, scale, zero, grid))
        better = found < best
        best = torch.where(better, found, best)
        best_scale = torch.where(better, scale, best_scale)
        if zero is not None and best_zero is not None:
            best_zero = torch.where(better, zero, best_zero)
    return best_scale, best_zero


def hqq(grouped: Tensor, grid: Grid, dtype: torch.dtype) -> Range:
    """Half-quadratic zeros: with the scale fixed, z minimises Σ|w − ŵ|^0.7 (HQQ, Badri and Shaji 2023).

    Alternates a shrinkage of the error, e = sign(r)·relu(|r| − |r|^(p−1) / β), with the closed form
    z = mean(q − (w − e) / s) over the group, β growing, and keeps each group's z of least mean |r|. Zeros are real
    numbers. (The reference stops as soon as the mean over the whole matrix rises. Kept by group, the error is a little
    lower and does not depend on how many rows are worked on at a time.)
    """
    scale, zero = minmax(grouped, grid, dtype)
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


def _importance_of_matrices(weight: Tensor, importance: Tensor | None, search: RangeSearch) -> Tensor | None:
    """float64 [matrices, in], checked; ``None`` for searches that do not use it."""
    if (importance is not None) != (search == "imatrix"):
        raise QuantizationError(
            f"The search {search} takes no importance; imatrix does."
            if importance is not None
            else "The search imatrix needs an importance of each input; without data use mse."
        )
    if importance is None:
        return None
    lead, width = weight.shape[:-2], weight.shape[-1]
    if importance.shape not in ((width,), (*lead, width)):
        raise QuantizationError(
            f"A weight {tuple(weight.shape)} needs an importance of shape {(*lead, width)}, "
            f"not {tuple(importance.shape)}."
        )
    importance = importance.double()
    bad = int((~(torch.isfinite(importance) & (importance >= 0))).sum())
    if bad:
        raise QuantizationError(f"{bad} importances are negative, NaN or infinite.")
    return importance.expand(*lead, width).reshape(-1, width)


def _relative(importance: Tensor) -> Tensor:
    """Importances [groups, width] in units of the largest of their group, float32; 1 where nothing counts."""
    largest = importance.amax(-1, keepdim=True)
    return torch.where(largest > 0, importance / largest, torch.ones_like(importance)).float()


def _ends(grouped: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    if grid.symmetric:
        high = torch.maximum(-low, high)
        low = -high
    return low, high


def _range(low: Tensor, high: Tensor, grid: Grid, dtype: torch.dtype) -> Range:
    span = (high - low) / grid.code_max
    # A group of zeros gets the scale 1: its codes are then its zero, exactly.
    scale = torch.where(span == 0, torch.ones_like(span), span.clamp(min=torch.finfo(dtype).tiny)).to(dtype)
    if not torch.isfinite(scale).all():
        raise QuantizationError(f"A scale of {float(span.max()):.3g} does not fit {dtype}; load the model in float32.")
    if grid.symmetric:
        return scale, None
    return scale, (-low / scale.float()).round().clamp(0, grid.code_max)
