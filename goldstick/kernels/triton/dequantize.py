"""The weight written out: bit-equal to the reference."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from goldstick.kernels.base import WeightSpec
from goldstick.kernels.triton import tuning
from goldstick.kernels.triton.tiles import load_for_words, load_tile, rounded
from goldstick.kernels.triton.tuning import aligned, dense

_TILE_ROWS = 32
_TILE_WORDS = 16


@triton.jit
def _write(
    packed,
    scale,
    zero,
    weight,
    row_count,
    columns,
    width,
    groups,
    words_per_group,
    bits: tl.constexpr,
    has_zero: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_words: tl.constexpr,
):
    per_word: tl.constexpr = 32 // bits
    dtype: tl.constexpr = weight.dtype.element_ty
    rows = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    word = tl.program_id(1) * tile_words
    words = load_tile(packed, rows, word, row_count, width, tile_words)
    steps = load_for_words(scale, rows, word, row_count, groups, words_per_group, tile_words)
    if has_zero:
        zeros = load_for_words(zero, rows, word, row_count, groups, words_per_group, tile_words)
    else:
        zeros = tl.full(steps.shape, 1 << (bits - 1), tl.float32)
    shifts = tl.arange(0, per_word) * bits
    codes = (words[:, :, None] >> shifts[None, None, :]) & ((1 << bits) - 1)  # [rows, words, codes of a word]
    centred = rounded(codes.to(tl.float32) - zeros[:, :, None], dtype).to(tl.float32)
    values = tl.reshape(rounded(centred * steps[:, :, None], dtype), (tile_rows, tile_words * per_word))
    at = word * per_word + tl.arange(0, tile_words * per_word)
    inside = (rows < row_count)[:, None] & (at < columns)[None, :]
    tl.store(weight + rows[:, None].to(tl.int64) * columns + at[None, :], values, mask=inside)


def dequantize(packed: Tensor, scale: Tensor, zero: Tensor | None, spec: WeightSpec) -> Tensor:
    """(u − zero) · scale, [out, in], both operations rounded to the dtype of the scale."""
    weight = scale.new_empty(spec.out_features, spec.in_features)
    if weight.numel():
        _write[(triton.cdiv(spec.out_features, _TILE_ROWS), triton.cdiv(spec.packed_width, _TILE_WORDS))](
            aligned(packed),
            dense(scale, scale),
            dense(zero, scale),
            weight,
            spec.out_features,
            spec.in_features,
            spec.packed_width,
            spec.groups,
            tuning.words_per_group(spec),
            bits=spec.bits,
            has_zero=zero is not None,
            tile_rows=_TILE_ROWS,
            tile_words=_TILE_WORDS,
        )
    return weight
