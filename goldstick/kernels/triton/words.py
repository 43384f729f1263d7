"""Multiplying packed words: two codes of a word become numbers at a time, and are multiplied where they are.

A word is shifted and masked so that a code lies in each of its 16-bit halves. Over the bits of 2^10 (float16) or 2^7
(bfloat16) it is the number 2^10 + u or 2^7 + u, so no integer is ever converted. The codes of a word belong to
neighbouring columns, but a sum may take its columns in any order: all first codes of words are one operand, all second
codes another, and the inputs are dealt out accordingly, which is cheap since they are few.
"""

from __future__ import annotations

import triton
import triton.language as tl

from goldstick.kernels.triton.tiles import halves, rounded
from goldstick.kernels.triton.tuning import interpreted

_INTERPRETED = tl.constexpr(interpreted)

# A float's bits, and what it is worth, with room for a code in its lowest bits (10 of float16, 7 of bfloat16).
FLOAT16_ROOM = tl.constexpr(0x6400)
FLOAT16_WORTH = tl.constexpr(1024)
BFLOAT16_ROOM = tl.constexpr(0x4300)
BFLOAT16_WORTH = tl.constexpr(128)


@triton.jit
def _masked_or(words, mask: tl.constexpr, room: tl.constexpr):
    """(words & mask) | room, as one instruction: the compiler would do it for each 16-bit half by itself.

    lop3 finds each bit in the table 0xEA = (0xF0 & 0xCC) | 0xAA, where these three stand for its operands.
    """
    if _INTERPRETED:
        return (words & mask) | room
    else:
        instruction: tl.constexpr = "lop3.b32 $0, $1, $2, $3, 0xEA;"
        return tl.inline_asm_elementwise(instruction, "=r,r,r,r", [words, mask, room], tl.int32, is_pure=True, pack=1)


@triton.jit
def _code_pair(words, shift: tl.constexpr, bits: tl.constexpr, product: tl.constexpr):
    """u − 2^(bits−1) of the codes ``shift`` bits above the start of each half of a word, exact, in ``product``."""
    middle: tl.constexpr = 1 << (bits - 1)
    mask: tl.constexpr = (1 << bits) - 1
    if product == tl.float16:
        pair = _masked_or(words >> shift, mask | mask << 16, FLOAT16_ROOM | FLOAT16_ROOM << 16)
        low = pair.to(tl.int16).to(tl.float16, bitcast=True) - (FLOAT16_WORTH + middle)
        high = (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True) - (FLOAT16_WORTH + middle)
    elif product == tl.bfloat16 and bits < 8:
        pair = _masked_or(words >> shift, mask | mask << 16, BFLOAT16_ROOM | BFLOAT16_ROOM << 16)
        low = pair.to(tl.int16).to(tl.bfloat16, bitcast=True) - (BFLOAT16_WORTH + middle)
        high = (pair >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True) - (BFLOAT16_WORTH + middle)
    else:
        low = (((words >> shift) & mask) - middle).to(product)
        high = (((words >> (shift + 16)) & mask) - middle).to(product)
    return low, high


@triton.jit
def _scaled(codes, scale, shift, has_zero: tl.constexpr, product: tl.constexpr):
    """Weights of centred codes: (codes − shift) · scale."""
    if has_zero:
        return rounded((codes.to(tl.float32) - shift) * scale, product)
    else:
        return codes * rounded(scale, product)


@triton.jit
def _add_pair(
    sums,
    words,
    first,
    second,
    scale,
    zero_shift,
    shift: tl.constexpr,
    bits: tl.constexpr,
    has_zero: tl.constexpr,
    one_group: tl.constexpr,
    product: tl.constexpr,
):
    low, high = _code_pair(words, shift, bits, product)
    if not one_group:
        low = _scaled(low, scale, zero_shift, has_zero, product)
        high = _scaled(high, scale, zero_shift, has_zero, product)
    sums = tl.dot(low, tl.trans(first), sums, input_precision="ieee")
    return tl.dot(high, tl.trans(second), sums, input_precision="ieee")


@triton.jit
def add_products(
    sums,
    words,
    inputs,
    scale,
    zero_shift,
    bits: tl.constexpr,
    has_zero: tl.constexpr,
    one_group: tl.constexpr,
    product: tl.constexpr,
):
    """sums + weights · inputsᵀ, float32 [rows, tokens].

    Args:
        sums: float32 [rows, tokens].
        words: int32 [rows, columns · bits / 32].
        inputs: [tokens, columns] in ``product``.
        scale: float32, [rows, words]; not used with ``one_group``.
        zero_shift: zero − 2^(bits−1), float32, [rows, words]; not used with ``one_group``.
        bits: 4 or 8.
        has_zero: Whether ``zero_shift`` counts.
        one_group: Take codes − 2^(bits−1) for weights: the caller scales the sums.
        product: The dtype of both operands.
    """
    even, odd = halves(inputs)
    column_0, column_2 = halves(even)
    column_1, column_3 = halves(odd)  # of every four
    if bits == 8:
        sums = _add_pair(sums, words, column_0, column_2, scale, zero_shift, 0, bits, has_zero, one_group, product)
        sums = _add_pair(sums, words, column_1, column_3, scale, zero_shift, 8, bits, has_zero, one_group, product)
    else:
        column_0, column_4 = halves(column_0)
        column_1, column_5 = halves(column_1)
        column_2, column_6 = halves(column_2)
        column_3, column_7 = halves(column_3)  # of every eight
        sums = _add_pair(sums, words, column_0, column_4, scale, zero_shift, 0, bits, has_zero, one_group, product)
        sums = _add_pair(sums, words, column_1, column_5, scale, zero_shift, 4, bits, has_zero, one_group, product)
        sums = _add_pair(sums, words, column_2, column_6, scale, zero_shift, 8, bits, has_zero, one_group, product)
        sums = _add_pair(sums, words, column_3, column_7, scale, zero_shift, 12, bits, has_zero, one_group, product)
    return sums
