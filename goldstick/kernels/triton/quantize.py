"""Rounding every token to 8 or 4 bits with a scale of its own, with or without the RMSNorm before it, in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from goldstick.kernels.triton.numbers import whole
from goldstick.kernels.triton.tiles import rounded
from goldstick.kernels.triton.tuning import aligned, dense

_LARGEST_TILE = 4096


@triton.jit
def _load(x, weight, at, columns, inverse, dtype: tl.constexpr, normalize: tl.constexpr):
    """Values float32 [tile] of a token as they are to be quantized, each step rounded to the layer's dtype."""
    values = tl.load(x + at, mask=at < columns, other=0).to(tl.float32)
    if normalize:
        unit = rounded(values * inverse, dtype).to(tl.float32)
        factor = tl.load(weight + at, mask=at < columns, other=0).to(tl.float32)
        values = rounded(unit * factor, dtype).to(tl.float32)
    return values


@triton.jit
def _quantize(
    x,
    weight,
    codes,
    scale,
    code_sums,
    columns,
    added,
    smallest,
    dtype: tl.constexpr,
    normalize: tl.constexpr,
    tile: tl.constexpr,
    end: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    x += token * columns
    codes += token * columns
    inverse = 1.0
    if normalize:
        squares = tl.zeros((tile,), tl.float32)
        for first in range(0, columns, tile):
            at = first + tl.arange(0, tile)
            values = tl.load(x + at, mask=at < columns, other=0).to(tl.float32)
            squares += values * values
        mean = tl.div_rn(tl.sum(squares, axis=0), tl.cast(columns, tl.float32))
        inverse = tl.div_rn(1.0, tl.sqrt_rn(mean + added))
    largest = tl.zeros((tile,), tl.float32)
    for first in range(0, columns, tile):
        values = _load(x, weight, first + tl.arange(0, tile), columns, inverse, dtype, normalize)
        largest = tl.maximum(largest, tl.where(values == values, tl.abs(values), float("inf")))
    most = tl.max(largest, axis=0)
    finite = most < float("inf")
    step = rounded(tl.div_rn(tl.where(finite, most, 0.0), end - 0.5), dtype).to(tl.float32)
    step = tl.where(step == 0, smallest, step)
    total = tl.zeros((tile,), tl.int32)
    for first in range(0, columns, tile):
        at = first + tl.arange(0, tile)
        values = _load(x, weight, at, columns, inverse, dtype, normalize)
        values = tl.where(finite, values, 0.0)
        quotients = rounded(tl.div_rn(values, step), dtype).to(tl.float32)
        code = whole(tl.minimum(tl.maximum(quotients, -end), end - 1.0))
        total += code.to(tl.int32)
        tl.store(codes + at, code.to(tl.int8), mask=at < columns)
    tl.store(scale + token, rounded(tl.where(finite, step, float("nan")), dtype))
    tl.store(code_sums + token, tl.sum(total, axis=0))


def quantize_tokens(
    x: Tensor, norm_weight: Tensor | None = None, epsilon: float = 0.0, bits: int = 8
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of the reference's ``fake_quantize_per_token``, of x itself or of its RMSNorm.

    With a norm, what is quantized is (x / √(mean(x²) + ε)) · norm_weight, its mean and root in float32, its two
    products rounded to x's dtype, as transformers computes it.

    Args:
        x: [tokens, in].
        norm_weight: [in], in x's dtype; ``None`` for no norm.
        epsilon: ε.
        bits: Of the codes, which are stored in int8.

    Returns:
        int8 codes [tokens, in]; their scales [tokens, 1] in x's dtype, not a number where the token holds an infinity
        or what is none; int32 sums of codes [tokens].
    """
    tokens, columns = x.shape
    codes = torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format)
    scale = x.new_empty(tokens, 1)
    code_sums = x.new_empty(tokens, dtype=torch.int32)
    if tokens:
        tile = min(_LARGEST_TILE, triton.next_power_of_2(columns))
        _quantize[(tokens,)](
            aligned(x),
            dense(norm_weight, x),
            codes,
            scale,
            code_sums,
            columns,
            epsilon,
            torch.finfo(x.dtype).eps,
            dtype=getattr(tl, str(x.dtype).removeprefix("torch.")),
            normalize=norm_weight is not None,
            tile=tile,
            end=2.0 ** (bits - 1),
            num_warps=8 if tile > 1024 else 4,
        )
    return codes, scale, code_sums
