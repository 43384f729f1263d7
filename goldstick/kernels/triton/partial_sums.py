"""Adding up the parts of split rows: one after another, in a fixed order, without atomics."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from goldstick.kernels.triton.tiles import rounded
from goldstick.kernels.triton.tuning import dense

_TILE = 1024


@triton.jit
def _add(partial, bias, y, count, row_count, split_count, has_bias: tl.constexpr, tile: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    inside = at < count
    total = tl.zeros((tile,), tl.float32)
    for split in range(split_count):
        total += tl.load(partial + split * count + at, mask=inside, other=0)
    if has_bias:
        total += tl.load(bias + at % row_count, mask=inside, other=0).to(tl.float32)
    tl.store(y + at, rounded(total, y.dtype.element_ty), mask=inside)


def add_partial_sums(partial: Tensor, bias: Tensor | None, y: Tensor) -> None:
    """y = partial[0] + partial[1] + … + bias, added in this order in float32.

    Args:
        partial: float32 [splits, tokens, rows].
        bias: [rows], or ``None``.
        y: [tokens, rows], written to.
    """
    grid = (triton.cdiv(y.numel(), _TILE),)
    _add[grid](
        partial,
        dense(bias, y),
        y,
        y.numel(),
        y.shape[1],
        partial.shape[0],
        has_bias=bias is not None,
        tile=_TILE,
    )
