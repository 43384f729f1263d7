"""Which ranges a row is solved with: those that leave less error, once its columns have made up for each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from goldstick.algorithms.column_loop import solve_columns
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.rows import row_chunks

_CLEARLY = 0.9
"""Ranges that look at the weight alone must leave less than this of a row's error, to be taken in place of others."""
_CLIPPED = 0.2
"""They are tried where more than this of a row's error is of columns that were clipped."""


def solve_with_ranges(
    target: Tensor, factor: Tensor, columns: Tensor, ranges: Mapping[str, QuantizedTensor]
) -> tuple[QuantizedTensor, Tensor]:
    """The codes of :func:`solve_columns`, each row with the scales and zeros of that rounding which serve it best.

    A search for ranges knows rounding to nearest, and shrinks a range until what is clipped costs as much as finer
    steps save. The column loop moves weights past such a range, where they can make up for nothing any more, so that
    wider steps may leave less in the end. It shows: much of Σ_j e_j², the row's error in the damped Hessian, is then of
    columns that were clipped. Such rows are solved with the other ranges, too. The first ranges stay unless others are
    clearly better, for they are nearer to the weight, which counts on inputs that were not seen.

    Args:
        target: W, or W' of GPTAQ, float [out, in].
        factor: U, float64 [in, in], of the Hessian in the order of the columns.
        columns: That order, int64 [in].
        ranges: Roundings on one grid, of which scales and zeros count. If rows share scales, so they do in the answer.

    Returns:
        The codes with their ranges, and Σ_j e_j² of each row, float64 [out].
    """
    first, *others = ranges.values()
    codes, squares, clipped = solve_columns(target, factor, columns, first)
    solved, together = replace(first, codes=codes), first.grid.rows_share_scales
    tried = clipped.sum() > _CLIPPED * squares.sum() if together else clipped > _CLIPPED * squares
    for other in others:
        codes, found = solved.codes.clone(), squares.clone()
        for part in row_chunks(target, copies=2):
            rows = tried.expand(len(target))[part].nonzero().squeeze(1) + part.start
            if len(rows):
                codes[rows], found[rows], _ = solve_columns(target[rows], factor, columns, other.rows(rows))
        better = found < _CLEARLY * squares
        if together:
            better = (found.sum() < _CLEARLY * squares.sum()).expand(len(found))
        solved = better_rows(solved, replace(other, codes=codes), better)
        squares = torch.where(better, found, squares)
    return solved, squares


def better_rows(first: QuantizedTensor, second: QuantizedTensor, better: Tensor) -> QuantizedTensor:
    """The rows of the second where that is better, bool [out], otherwise those of the first; on one grid."""
    chosen = better.unsqueeze(-1)
    zero, divisor = first.zero, first.global_scale
    if zero is not None and second.zero is not None:
        zero = torch.where(chosen, second.zero, zero)
    if divisor is not None and second.global_scale is not None and first.grid.superblock is not None:
        divisor = torch.where(chosen.unsqueeze(-1), second.global_scale, divisor)
    return replace(
        first,
        codes=torch.where(chosen, second.codes, first.codes),
        scale=torch.where(chosen, second.scale, first.scale),
        zero=zero,
        global_scale=divisor,
    )
