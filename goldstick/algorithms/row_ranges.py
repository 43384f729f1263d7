"""Which ranges a row is solved with: those that leave less error, once its columns have made up for each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from goldstick.algorithms.column_loop import solve_columns
from goldstick.core.qtensor import QuantizedTensor

_CLEARLY = 0.9
"""Ranges that look at the weight alone must leave less than this of a row's error, to be taken in place of others."""


def solve_with_ranges(
    target: Tensor, factor: Tensor, columns: Tensor, ranges: Mapping[str, QuantizedTensor]
) -> tuple[QuantizedTensor, Tensor]:
    """The codes of :func:`solve_columns`, each row with the scales and zeros of that rounding which serve it best.

    A search for ranges knows rounding to nearest, and shrinks a range until what is clipped costs as much as finer
    steps save. The column loop moves weights past such a range, where they can make up for nothing any more, so that
    wider steps may leave less in the end. Which of them do is seen by solving with both: Σ_j e_j² of a row is its error
    in the damped Hessian. The first ranges stay unless others are clearly better, for they are nearer to the weight,
    which counts on inputs that were not seen.

    Args:
        target: W, or W' of GPTAQ, float [out, in].
        factor: U, float64 [in, in], of the Hessian in the order of the columns.
        columns: That order, int64 [in].
        ranges: Roundings on one grid, of which scales and zeros count. If rows share scales, so they do in the answer.

    Returns:
        The codes with their ranges, and Σ_j e_j² of each row, float64 [out].
    """
    first, *others = ranges.values()
    codes, squares = solve_columns(target, factor, columns, first)
    solved = replace(first, codes=codes)
    for other in others:
        codes, found = solve_columns(target, factor, columns, other)
        better = found < _CLEARLY * squares
        if first.grid.rows_share_scales:
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
