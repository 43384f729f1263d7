"""Sums over tokens of products of whole numbers, exact: no order, chunking or number of threads changes a bit."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from goldstick.core.compiled import compiled
from goldstick.core.powers_of_two import exponents_of, power_of_two
from goldstick.errors import QuantizationError

BITS = 13
"""Bits of a rounded value, without its sign: 31 products of two such values fit 32 bits, so that a processor can sum
eight times as many at once as in float64."""

_COLUMN_BLOCK = 512
_BYTES_BLOCK = 2048
_OF_BYTES = 32  # channels and tokens come in such numbers where bytes are multiplied
_TOGETHER = 2048  # tokens
_TOGETHER_ON_DEVICE = 8 * _TOGETHER
_TOKENS = 1 << 16  # at a time; tokens · 2^(2·BITS) stays below 2^53
_LEAST_EXPONENT = -100  # smaller values are as good as none, and 2^(BITS − e) fits a float32


def exponents_for(largest: Tensor) -> Tensor:
    """eⱼ with |vⱼ| < 2^eⱼ for the largest |vⱼ| of each channel, int64, -100 or more; 0 for a channel of zeros."""
    return exponents_of(largest).clamp_(min=_LEAST_EXPONENT)


def whole_numbers(values: Tensor, exponents: Tensor) -> Tensor:
    """round(vⱼ · 2^(BITS − eⱼ)) of some values [tokens, channels], each at most 2^BITS in size; int16.

    Args:
        values: float [tokens, channels], finite.
        exponents: eⱼ of each channel, int64 [channels], from :func:`exponents_for`.

    Raises:
        QuantizationError: A value is larger than that.
    """
    wide = values if values.dtype in (torch.float32, torch.float64) else values.float()
    up = power_of_two(BITS - exponents).to(device=wide.device, dtype=wide.dtype)
    rounded = (wide * up).round_()  # the product is exact, or so small that it is rounded to 0
    if len(rounded):
        low, high = torch.aminmax(rounded)
        if max(-low, high) > 2**BITS:
            raise QuantizationError("A batch exceeds the range given for it: the two passes saw different inputs.")
    return rounded.to(torch.int16)


def add_products(sums: Tensor, left: Tensor, right: Tensor | None = None) -> None:
    """Add Σ leftᵢ · rightⱼ over the tokens to ``sums``, in place.

    Args:
        sums: int64 [rows, columns].
        left: int16 [tokens, rows], from :func:`whole_numbers`.
        right: int16 [tokens, columns]; ``None`` for ``left`` itself, and then only the sums on and above the diagonal
            are all there afterwards: :func:`mirror` does the rest.
    """
    operator = compiled("add_products", left.device)
    if operator is not None:
        operator(sums, left, left if right is None else right)
        return
    columns = left if right is None else right
    if left.device.type == "cuda" and not (left.shape[-1] % _OF_BYTES or columns.shape[-1] % _OF_BYTES):
        _add_products_of_bytes(sums, left, right)
        return
    for token in range(0, len(left), _TOKENS):
        wide, rest = left[token : token + _TOKENS].double(), columns[token : token + _TOKENS].double()
        for start in range(0, len(sums), _COLUMN_BLOCK):
            first = start if right is None else 0
            product = wide[:, start : start + _COLUMN_BLOCK].T @ rest[:, first:]  # every partial sum below 2^53
            sums[start : start + _COLUMN_BLOCK, first:] += product.to(device=sums.device, dtype=torch.int64)


def _add_products_of_bytes(sums: Tensor, left: Tensor, right: Tensor | None) -> None:
    """:func:`add_products` by products of 8-bit integers, which devices multiply many times as fast as float64.

    q = 2^7 h + l with |h| ≤ 2^6 and −2^6 ≤ l < 2^6, so q q' = 2^14 h h' + 2^7 m + l l' with m = h l' + l h' =
    (h + l)(h' + l') − h h' − l l' (Karatsuba). h + l fits 8 bits, too, for h = 2^6 leaves l ≤ 0; and sums of 2^16
    tokens of these products, and of m, are below 2^31.
    """
    for token in range(0, len(left), _TOKENS):
        rows = _bytes_of(left[token : token + _TOKENS])
        columns = rows if right is None else _bytes_of(right[token : token + _TOKENS])
        for start in range(0, len(sums), _BYTES_BLOCK):
            first = start if right is None else 0
            target = sums[start : start + _BYTES_BLOCK, first:]
            high, low, middle = (
                torch._int_mm(part[start : start + _BYTES_BLOCK], beside[first:].T)
                for part, beside in zip(rows, columns, strict=True)
            )
            middle -= high
            middle -= low
            target += high.long() << 14
            target += middle.long() << 7
            target += low


def _bytes_of(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h, l and h + l of whole numbers [tokens, channels], int8 [channels, tokens]; zeros fill the tokens up."""
    numbers = torch.nn.functional.pad(numbers, (0, 0, 0, -len(numbers) % _OF_BYTES)).T
    high = (numbers + 64) >> 7
    low = numbers - (high << 7)
    return tuple(part.to(torch.int8).contiguous() for part in (high, low, high + low))  # type: ignore[return-value]


def joined(pieces: Iterator[Tensor]) -> Iterator[Tensor]:
    """The same rows in fewer pieces: all sums are read and written for each."""
    waiting: list[Tensor] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(map(len, waiting)) >= (_TOGETHER if piece.device.type == "cpu" else _TOGETHER_ON_DEVICE):
            yield torch.cat(waiting)
            waiting = []
    if waiting:
        yield torch.cat(waiting)


def mirror(sums: Tensor) -> None:
    """Copy what lies above the diagonal of a square matrix to below it, in place."""
    for start in range(0, len(sums), _COLUMN_BLOCK):
        stop = start + _COLUMN_BLOCK
        sums[stop:, start:stop] = sums[start:stop, stop:].T
        block = sums[start:stop, start:stop]
        block.copy_(block.triu() + block.triu(1).T)
