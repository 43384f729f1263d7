"""Pieces that the kernels share: tiles of inputs and packed words, scales and zeros, and rounding to a dtype.

``rows``, ``tokens`` and so on are vectors of indices; what lies beyond the end of a tensor is 0 and never read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from goldstick.kernels.triton.tuning import interpreted

_INTERPRETED = tl.constexpr(interpreted)


@triton.jit
def rounded(values, dtype: tl.constexpr):
    """float32 values in another dtype, rounded to the nearest, ties to even.

    The interpreter cuts bfloat16 off instead, so there the lower half is rounded away first.
    """
    if _INTERPRETED and dtype == tl.bfloat16:
        bits = values.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        values = bits.to(tl.float32, bitcast=True)
    return values.to(dtype)


@triton.jit
def load_tile(matrix, rows, first, row_count, width, tile: tl.constexpr):
    """Elements [rows, tile] of a matrix [row_count, width], from the column ``first`` on."""
    at = first + tl.arange(0, tile)
    inside = (rows < row_count)[:, None] & (at < width)[None, :]
    return tl.load(matrix + rows[:, None].to(tl.int64) * width + at[None, :], mask=inside, other=0)


@triton.jit
def load_for_rows(values, rows, group, row_count, groups):
    """Scales or zeros of one group, float32 [rows, 1]."""
    at = values + rows.to(tl.int64) * groups + group
    return tl.load(at, mask=rows < row_count, other=0).to(tl.float32)[:, None]


@triton.jit
def load_for_words(values, rows, first, row_count, groups, words_per_group, tile_words: tl.constexpr):
    """Scales or zeros of each word from ``first`` on, float32 [rows, tile_words]."""
    group = (first + tl.arange(0, tile_words)) // words_per_group
    inside = (rows < row_count)[:, None] & (group < groups)[None, :]
    at = values + rows[:, None].to(tl.int64) * groups + group[None, :]
    return tl.load(at, mask=inside, other=0).to(tl.float32)


@triton.jit
def halves(inputs):
    """The columns with even and those with odd numbers, each half as wide."""
    return tl.split(tl.reshape(inputs, (inputs.shape[0], inputs.shape[1] // 2, 2)))


@triton.jit
def output_places(tokens, rows, token_count, row_count):
    """Where outputs [rows, tokens] lie in a matrix [token_count, row_count], and which of them are in it."""
    places = tokens[None, :].to(tl.int64) * row_count + rows[:, None]
    return places, (tokens < token_count)[None, :] & (rows < row_count)[:, None]
