"""Which of several ranges rounds a group of weights with the least error."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.compiled import compiled
from goldstick.core.grid import Grid
from goldstick.core.qtensor import values_on_grid

_BLOCK = 32
#: Bits of the largest tables that a GPU looks through for each weight and candidate.
_TABLE_BITS = 4


def least_error_range(
    grouped: Tensor, scale: Tensor, zero: Tensor | None, importance: Tensor | None, grid: Grid
) -> Tensor:
    """The first of several ranges with the least Σ importance · |ŵ − w|^2.5, for each group, int64 [rows, groups].

    The compiled ``goldstick::search_ranges`` where there is one, plain torch otherwise; both choose the same.

    Args:
        grouped: Weights, float32 [rows, groups, width].
        scale: Candidates, float32 [rows, groups, candidates].
        zero: Their zeros, float32 of the same shape; ``None`` for a symmetric grid.
        importance: float32 [groups, width], 0 or more; ``None`` if all columns count alike.
        grid: Bits and symmetry.
    """
    fused = compiled("search_ranges", grouped.device)
    if fused is not None and (grouped.device.type == "cpu" or grid.integers or grid.bits <= _TABLE_BITS):
        found: Tensor = fused(grouped, scale, zero, importance, grid.bits, "" if grid.integers else grid.element)
        return found
    best = torch.zeros(grouped.shape[:2], dtype=torch.int64, device=grouped.device)
    least = torch.full(grouped.shape[:2], torch.inf, dtype=grouped.dtype, device=grouped.device)
    for candidate in range(scale.shape[-1]):
        chosen_zero = None if zero is None else zero[..., candidate]
        error = rounding_error(grouped, scale[..., candidate], chosen_zero, importance, grid)
        better = error < least
        best.masked_fill_(better, candidate)
        least = torch.where(better, error, least)
    return best


def deviation(grouped: Tensor, scale: Tensor, zero: Tensor | None, grid: Grid) -> Tensor:
    """ŵ − w, float32 [rows, groups, width], of values rounded with scales and zeros [rows, groups]."""
    return values_on_grid(grouped, scale, zero, grid) * scale.float().unsqueeze(-1) - grouped


def rounding_error(
    grouped: Tensor, scale: Tensor, zero: Tensor | None, importance: Tensor | None, grid: Grid
) -> Tensor:
    """Σ importance · |ŵ − w|^2.5 of each group, float32 [rows, groups].

    GPTQ's reference search (arXiv 2210.17323) uses the power 2.4, which mathematical libraries round in different
    ways. |d|^2.5 = d² · √|d| takes operations that IEEE 754 rounds correctly, so it is the same number everywhere. For
    the same reason the order of the sum is fixed: blocks of 32 terms are folded in halves and then added one by one.

    Args:
        grouped: Weights, float32 [rows, groups, width].
        scale: float [rows, groups].
        zero: float32 [rows, groups], or ``None`` for a symmetric grid.
        importance: float32 [groups, width], or ``None`` if all columns count alike.
        grid: Bits and symmetry.
    """
    moved = deviation(grouped, scale, zero, grid)
    # torch's own float32 root may be off in the last bit. A float64 root has a few bits to spare: no float32 root comes
    # so near the middle between two float32 numbers that they decide, so this is the one that is rounded correctly.
    terms = (moved * moved) * moved.abs_().double().sqrt_().float()
    if importance is not None:
        terms *= importance
    if terms.shape[-1] % _BLOCK:
        terms = torch.nn.functional.pad(terms, (0, -terms.shape[-1] % _BLOCK))
    terms = terms.reshape(*terms.shape[:-1], terms.shape[-1] // _BLOCK, _BLOCK)  # [rows, groups, blocks, 32]
    for half in (16, 8, 4, 2, 1):
        terms = terms[..., :half] + terms[..., half:]
    blocks = terms.squeeze(-1)
    total = blocks[..., 0]
    for block in range(1, blocks.shape[-1]):
        total = total + blocks[..., block]
    return total
