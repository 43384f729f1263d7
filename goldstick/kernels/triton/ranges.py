"""The search for the range of least error: a program takes one group of weights, a few candidates at a time."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from goldstick.core.element import ELEMENTS
from goldstick.errors import KernelError
from goldstick.kernels.triton.numbers import clamped, places, ratios, whole

_TILE_CANDIDATES = 16
_BLOCK = tl.constexpr(32)


@triton.jit
def _backwards(places):
    """Numbers below 32 with their five bits in the opposite order, so that neighbours are those 16 apart."""
    turned = (places & 1) * 16 + (places & 2) * 4 + (places & 4)
    return turned + ((places & 8) >> 2) + ((places & 16) >> 4)


@triton.jit
def _sums_of_neighbours(terms):
    even, odd = tl.split(tl.reshape(terms, (terms.shape[0], terms.shape[1] // 2, 2)))
    return even + odd


@triton.jit
def _search(
    values,
    scale,
    zero,
    importance,
    edges,
    table,
    best,
    groups,
    width,
    candidates,
    edge_count,
    bits: tl.constexpr,
    has_zero: tl.constexpr,
    weighted: tl.constexpr,
    has_table: tl.constexpr,
    sign_bit: tl.constexpr,
    keeps_zero_sign: tl.constexpr,
    tile: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64)
    values += group * width
    importance += group % groups * width
    middle: tl.constexpr = 1 << (bits - 1)
    terms_at = _backwards(tl.arange(0, _BLOCK))
    least = float("inf")
    chosen = tl.full((), 0, tl.int32)
    for first in range(0, candidates, tile):
        number = first + tl.arange(0, tile)
        steps = tl.load(scale + group * candidates + number, mask=number < candidates, other=1)[:, None]
        if has_zero:
            shift = tl.load(zero + group * candidates + number, mask=number < candidates, other=0)[:, None]
        else:
            shift = tl.full((tile, 1), middle, tl.float32)
        total = tl.zeros((tile,), tl.float32)
        for block in range(0, width, _BLOCK):
            at = block + terms_at
            value = tl.load(values + at, mask=at < width, other=0)[None, :]
            ratio = ratios(value, steps)
            if has_table:
                level = tl.load(table + places(ratio, edges, edge_count, sign_bit, keeps_zero_sign))
            else:
                if has_zero:
                    ratio += shift - middle
                level = whole(clamped(ratio, -middle * 1.0, (middle - 1) * 1.0)) + middle - shift
            moved = level * steps - value
            terms = (moved * moved) * tl.sqrt_rn(tl.abs(moved))
            if weighted:
                terms *= tl.load(importance + at, mask=at < width, other=0)[None, :]
            terms = tl.where((at < width)[None, :], terms, 0.0)
            # Folded in halves, as in algorithms/range_error.py: 16 apart, then 8, 4, 2 and 1.
            for _ in tl.static_range(4):
                terms = _sums_of_neighbours(terms)
            even, odd = tl.split(terms)
            total += even + odd
        total = tl.where((number < candidates) & (total == total), total, float("inf"))
        error, place = tl.min(total, axis=0, return_indices=True, return_indices_tie_break_left=True)
        chosen = tl.where(error < least, first + place, chosen)
        least = tl.minimum(least, error)
    tl.store(best + group, tl.cast(chosen, tl.int64))


def search_ranges(
    grouped: Tensor, scale: Tensor, zero: Tensor | None, importance: Tensor | None, bits: int, element: str = ""
) -> Tensor:
    """The first candidate of least error, int64 [rows, groups], as ``algorithms/range_error.py`` finds it.

    The arguments are those of the operator, ``kernels/ranges_op.py``.

    Raises:
        KernelError: Weights or scales are not float32.
    """
    if grouped.dtype != torch.float32 or scale.dtype != torch.float32:
        raise KernelError(f"search_ranges takes float32, not weights in {grouped.dtype} and scales in {scale.dtype}")
    best = torch.empty(grouped.shape[:2], dtype=torch.int64, device=grouped.device)
    table = ELEMENTS.get(element)
    steps = scale.contiguous()
    edges = steps if table is None else table.edges(grouped.device)
    if best.numel():
        _search[(best.numel(),)](
            grouped.contiguous(),
            steps,
            steps if zero is None else zero.contiguous(),
            steps if importance is None else importance.contiguous(),
            edges,
            steps if table is None else table.table(grouped.device),
            best,
            *grouped.shape[1:],
            steps.shape[-1],
            0 if table is None else len(edges),
            bits=bits,
            has_zero=zero is not None,
            weighted=importance is not None,
            has_table=table is not None,
            sign_bit=1 << (bits - 1) if table is not None and table.signed else 0,
            keeps_zero_sign=table is not None and table.keeps_zero_sign,
            tile=_TILE_CANDIDATES,
            num_warps=1,
            enable_fp_fusion=False,  # products are rounded before they are added, as in torch
        )
    return best
