"""Pieces of the kernels that round to a grid: whole numbers, and the places of ratios in a table."""

from __future__ import annotations

import triton
import triton.language as tl

# Added to a float32 of at most 2^22 and taken away again, it leaves the nearest whole number, ties to even.
_TO_WHOLE = tl.constexpr(12582912.0)


@triton.jit
def whole(values):
    """The nearest whole number of float32 values of at most 2^22, ties to even."""
    return (values + _TO_WHOLE) - _TO_WHOLE


@triton.jit
def clamped(values, lowest, highest):
    """Values no lower and no higher than two others; what is no number becomes the lowest."""
    values = tl.where(values > lowest, values, lowest)
    return tl.where(values < highest, values, highest)


@triton.jit
def ratios(values, steps):
    """values / steps, float32; 0 where a step is 0."""
    return tl.where(steps == 0, 0.0, tl.div_rn(values, tl.where(steps == 0, 1.0, steps)))


@triton.jit
def places(ratio, edges, edge_count, sign_bit: tl.constexpr, keeps_zero_sign: tl.constexpr):
    """Codes int32 of the nearest numbers of a table: how many edges lie below, and the sign bit, if there is one."""
    size = tl.abs(ratio) if sign_bit else ratio
    code = tl.zeros(ratio.shape, tl.int32)
    for place in range(edge_count):
        code += (size > tl.load(edges + place)).to(tl.int32)
    if sign_bit:
        below = ratio.to(tl.int32, bitcast=True) < 0 if keeps_zero_sign else ratio < 0
        code += tl.where(below, sign_bit, 0)
    return code
