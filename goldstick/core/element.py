"""Element type: the numbers that a code can stand for, and how to round to them.

A float element is a table of the values of its codes. Adding one is adding a line to ``ELEMENTS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

INTEGER = "int"
"""The element of integer grids: code − zero. Its bits and its zero are the grid's own."""


@dataclass(frozen=True, kw_only=True)
class Integers:
    """The numbers of an element as integers: value = (entry − middle) · unit.

    Attributes:
        entries: The byte of every code, uint8 [2^bits].
        middle: The byte of 0.
        unit: A power of two.
    """

    entries: Tensor
    middle: int
    unit: float


@dataclass(frozen=True, kw_only=True)
class Element:
    """A set of at most 256 numbers, each the value of a code.

    Attributes:
        name: What grids call it.
        bits: Bits of a code.
        values: The numbers of codes 0, 1, …, in ascending order; of ``signed`` elements those without the sign.
        signed: Whether the top bit of a code is a sign, so that −v has the code of v and that bit, and there is a −0.
        dtype: The torch dtype whose bytes are the codes, if there is one.
        keeps_zero_sign: Whether −0 is rounded to −0 and not to 0; compressed-tensors does either.
        mantissa_bits: Of floats, stored bits of the significand.
        note: Where it is defined.
    """

    name: str
    bits: int
    values: tuple[float, ...]
    signed: bool = True
    dtype: torch.dtype | None = None
    keeps_zero_sign: bool = True
    mantissa_bits: int = 0
    note: str = ""

    @property
    def largest(self) -> float:
        """The largest magnitude, to which that of a range is mapped."""
        return max(abs(self.values[0]), abs(self.values[-1]))

    def round(self, ratio: Tensor) -> Tensor:
        """The codes of the values nearest to ``ratio``, uint8 of its shape.

        What lies outside is clamped; ties go to the even code, as IEEE 754 has it. What is rounded to zero from below
        becomes −0.

        Args:
            ratio: float, w / scale. Rounded as it is, in its own dtype.
        """
        if not self.signed:
            return torch.bucketize(ratio.float(), _edges(self, ratio.device)).to(torch.uint8)
        if self.dtype is not None:
            return ratio.clamp(-self.largest, self.largest).to(self.dtype).view(torch.uint8)
        codes = torch.bucketize(ratio.float().abs().contiguous(), _edges(self, ratio.device)).to(torch.uint8)
        below = ratio.signbit() if self.keeps_zero_sign else ratio < 0
        return codes | (below.to(torch.uint8) << (self.bits - 1))

    def numbers(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values of codes, uint8 or any integers [...]; exact in every float dtype that holds them."""
        if self.dtype is not None and codes.dtype == torch.uint8 and not codes.is_meta:
            return codes.view(self.dtype).to(dtype)
        return self.table(codes.device).to(dtype)[codes.long()]

    def integers(self) -> Integers | None:
        """The same numbers as bytes with one unit and one zero, where they are such; ``None`` where they are not."""
        return _integers(self)

    def edges(self, device: torch.device | None = None) -> Tensor:
        """What lies between the values in ascending order, float32: a number has as many below it as its place is."""
        return _edges(self, device or torch.device("cpu"))

    def table(self, device: torch.device | None = None) -> Tensor:
        """The value of every code, float32 [2^bits]; NaN for codes that stand for no number."""
        return _table(self, device or torch.device("cpu"))


def _float_values(exponent_bits: int, mantissa_bits: int, bias: int, count: int | None = None) -> tuple[float, ...]:
    """Magnitudes of a float of so many bits, subnormal numbers among them: the first ``count``."""
    values = []
    for code in range(count or 1 << (exponent_bits + mantissa_bits)):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
        values.append(fraction * 2.0 ** (max(exponent, 1) - bias))
    return tuple(values)


_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_BNB_FP4 = (-12, -8, -6, -4, -3, -2, -0.0625, -0.0, 0.0, 0.0625, 2, 3, 4, 6, 8, 12)

ELEMENTS: dict[str, Element] = {
    element.name: element
    for element in (
        Element(name="e4m3", bits=8, values=_float_values(4, 3, 7, 127), dtype=torch.float8_e4m3fn, mantissa_bits=3,
                note="OCP FP8 without infinity, to 448 (2209.05433)"),
        Element(name="e5m2", bits=8, values=_float_values(5, 2, 15, 124), dtype=torch.float8_e5m2, mantissa_bits=2,
                note="OCP FP8, to 57344 (2209.05433)"),
        Element(name="e2m3", bits=6, values=_float_values(2, 3, 1), mantissa_bits=3,
                note="OCP FP6, to 7.5 (2310.10537)"),
        Element(name="e3m2", bits=6, values=_float_values(3, 2, 3), mantissa_bits=2,
                note="OCP FP6, to 28 (2310.10537)"),
        Element(name="e2m1", bits=4, values=_float_values(2, 1, 1), keeps_zero_sign=False, mantissa_bits=1,
                note="OCP FP4, to 6 (2310.10537)"),
        Element(name="nf4", bits=4, values=_NF4, signed=False,
                note="quantiles of the normal distribution (2305.14314)"),
        Element(name="bnbfp4", bits=4, values=tuple(value / 12 for value in _BNB_FP4), signed=False,
                note="bitsandbytes' FP4, to 1, with two zeros and a smallest number of 1/192"),
        Element(name="iq4", bits=4, values=tuple(map(float, _IQ4)), signed=False, note="the table of GGUF's IQ4"),
    )
}  # fmt: skip
"""Float elements by name."""

E8M0 = "e8m0"
"""The element of scales that are powers of two: code e stands for 2^(e − 127), 255 for no number (2310.10537)."""


@lru_cache
def _table(element: Element, device: torch.device) -> Tensor:
    values = torch.full((1 << element.bits - element.signed,), torch.nan, dtype=torch.float32)
    values[: len(element.values)] = torch.tensor(element.values, dtype=torch.float32)
    if element.dtype is torch.float8_e5m2:
        values[124] = torch.inf
    return (torch.cat([values, -values]) if element.signed else values).to(device)


@lru_cache
def _integers(element: Element) -> Integers | None:
    values = element.table().double()
    if element.bits == 8 or not bool(values.isfinite().all()):
        return None
    unit = 2.0**-element.bits  # as fine as the small floats of so many bits may be
    while bool((values % (2 * unit) == 0).all()):
        unit *= 2
    whole = values / unit
    middle = -int(whole.min())
    if bool((whole != whole.round()).any()) or not 0 <= middle <= 255 - int(whole.max()):
        return None
    return Integers(entries=(whole + middle).to(torch.uint8), middle=middle, unit=unit)


@lru_cache
def _edges(element: Element, device: torch.device) -> Tensor:
    """What the values of codes 0 … k are less than or equal to, so that ``bucketize`` finds a code; float32."""
    values = torch.tensor(element.values, dtype=torch.float64)
    middles = (values[1:] + values[:-1]) / 2
    edges = middles.float()
    # ``bucketize`` gives the lower side of an edge to what equals it; a tie belongs to the even code.
    up = torch.arange(len(edges)) % 2 == 1
    exact = edges.double() == middles
    down = torch.nextafter(edges, torch.full_like(edges, -torch.inf))
    return torch.where((up & exact) | (edges.double() > middles), down, edges).to(device)
