"""Range searches: the scale and zero of each row or group, from the weight alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor, codes_on_grid, in_groups, quantize_on_grid
from goldstick.core.rows import as_rows, row_chunks
from goldstick.errors import QuantizationError

RangeSearch = Literal["minmax", "mse", "hqq"]
Range = tuple[Tensor, Tensor | None]  # scale, zero: each [rows, groups]

#: From values [rows, groups, width], their grid and the dtype that scales are stored in, to a range.
FindRange = Callable[[Tensor, Grid, torch.dtype], Range]

_SHRINK_STEPS = 80
_ERROR_POWER = 2.4
_HQQ_NORM = 0.7
_HQQ_BETA = 10.0
_HQQ_BETA_GROWTH = 1.01
_HQQ_ITERATIONS = 20


def quantize_with_search(weight: Tensor, grid: Grid, search: RangeSearch) -> QuantizedTensor:
    """Round ``weight`` [..., out, in] to ``grid`` with ranges from ``search``, a few rows at a time.

    The scale is stored in the weight's dtype (float32 for a float64 weight) and rounded to it before any code is
    computed.

    Raises:
        QuantizationError: The weight holds NaN or infinity, a scale does not fit its dtype, or the group size does not
            divide ``in``.
    """
    return quantize_with_ranges(weight, grid, _SEARCHES[search])


def quantize_with_ranges(weight: Tensor, grid: Grid, search: FindRange) -> QuantizedTensor:
    """:func:`quantize_with_search` with any function that finds ranges."""
    rows = as_rows(weight)
    pieces = [_quantize_rows(rows[part], grid, search) for part in row_chunks(rows, copies=4)]
    lead = weight.shape[:-1]
    zeros = [piece.zero for piece in pieces if piece.zero is not None]
    return QuantizedTensor(
        codes=torch.cat([piece.codes for piece in pieces]).reshape(weight.shape),
        scale=torch.cat([piece.scale for piece in pieces]).reshape(*lead, -1),
        zero=torch.cat(zeros).reshape(*lead, -1) if zeros else None,
        grid=grid,
    )


def _quantize_rows(rows: Tensor, grid: Grid, search: FindRange) -> QuantizedTensor:
    if not torch.isfinite(rows).all():
        bad = int((~torch.isfinite(rows)).sum())
        raise QuantizationError(f"{bad} values of the weight are NaN or infinite.")
    dtype = rows.dtype if rows.dtype in (torch.float16, torch.bfloat16) else torch.float32
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


def mse(grouped: Tensor, grid: Grid, dtype: torch.dtype) -> Range:
    """The shrunken range with the least Σ|ŵ − w|^2.4, of 80 from 100 % down to 21 %.

    The search of GPTQ's reference implementation (arXiv 2210.17323): both ends are multiplied by 1 − i/100.
    """
    ratios = [1 - step / 100 for step in range(_SHRINK_STEPS)]
    return shrunken(grouped, grid, dtype, ratios, lambda delta: delta.abs_().pow_(_ERROR_POWER).sum(-1))


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
    best = error(_rounding_error(grouped, best_scale, best_zero, grid))
    for ratio in ratios[1:]:
        scale, zero = _range(low * ratio, high * ratio, grid, dtype)
        found = error(_rounding_error(grouped, scale, zero, grid))
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


def _rounding_error(grouped: Tensor, scale: Tensor, zero: Tensor | None, grid: Grid) -> Tensor:
    step = scale.float().unsqueeze(-1)
    offset = grid.midpoint if zero is None else zero.unsqueeze(-1)
    codes = codes_on_grid(grouped, scale, zero, grid)
    return (codes - offset) * step - grouped
