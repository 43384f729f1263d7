"""Superblocks of 256 weights as ggml lays them out: Q2_K to Q6_K and IQ4_XS.

The scale d of a superblock and, of types with minimums, that of these, d', are float16; scales and minimums of its
groups are integers. With u a code, s a scale and m a minimum, a weight is

- Q2_K (84 bytes), Q4_K (144), Q5_K (176): d · s · u − d' · m,
- Q3_K (110): d · s · (u − 4), Q6_K (210): d · s · (u − 32),
- IQ4_XS (136): d · s · value of the table.

Codes of 2 bits lie four to a byte, 32 weights apart; those of 4 bits two to a byte, 32 apart (Q6_K 64, IQ4_XS 16); a
third or fifth bit lies in a field of its own, bit k of byte l for weight 32 k + l.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.core.grid import SUPERBLOCK

Fields = list[Tensor]
"""The bytes of superblocks in the order of the file, uint8 [superblocks, bytes] each."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What superblocks hold.

    Attributes:
        codes: uint8 [superblocks, 256].
        scales: int16 [superblocks, groups], with their sign.
        minimums: int16 [superblocks, groups], or ``None``.
        steps: float16 [superblocks, 1 or 2]: d and, with minimums, d'.
    """

    codes: Tensor
    scales: Tensor
    minimums: Tensor | None
    steps: Tensor


@dataclass(frozen=True, kw_only=True)
class SuperblockLayout:
    """How the superblocks of a type lie in a file.

    Attributes:
        sizes: Bytes of each field.
        to_fields: From parts to fields.
        to_parts: From fields to parts.
    """

    sizes: tuple[int, ...]
    to_fields: Callable[[Parts], Fields]
    to_parts: Callable[[Fields], Parts]

    @property
    def nbytes(self) -> int:
        """Bytes of a superblock."""
        return sum(self.sizes)


def _apart(codes: Tensor, bits: int, distance: int) -> Tensor:
    """Codes [n, 256] in bytes [n, 32 · bits], each of which holds the codes of weights ``distance`` apart."""
    parts = codes.reshape(len(codes), -1, 8 // bits, distance)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).reshape(-1, 1)
    return (parts << shifts).sum(2, dtype=torch.uint8).flatten(1)


def _together(stored: Tensor, bits: int, distance: int) -> Tensor:
    """The inverse of :func:`_apart`."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).reshape(-1, 1)
    parts = stored.reshape(len(stored), -1, 1, distance) >> shifts & (1 << bits) - 1
    return parts.reshape(len(stored), SUPERBLOCK)


def _halves(values: Tensor) -> Tensor:
    return values.reshape(-1).view(torch.uint8).reshape(len(values), -1)


def _floats(*stored: Tensor) -> Tensor:
    values = torch.cat(stored, dim=-1)
    return values.reshape(-1).view(torch.float16).reshape(len(values), -1)


def _six_bits(scales: Tensor, minimums: Tensor) -> Tensor:
    """Eight scales and eight minimums of six bits in twelve bytes, uint8 [n, 12]."""
    low = [part[:, :4].to(torch.uint8) for part in (scales, minimums)]
    high = [part[:, 4:].to(torch.uint8) for part in (scales, minimums)]
    first = [value | upper >> 4 << 6 for value, upper in zip(low, high, strict=True)]
    return torch.cat([*first, high[0] & 15 | (high[1] & 15) << 4], dim=-1)


def _from_six_bits(stored: Tensor) -> tuple[Tensor, Tensor]:
    first, second, third = stored[:, :4], stored[:, 4:8], stored[:, 8:]
    scales = torch.cat([first & 63, third & 15 | first >> 6 << 4], dim=-1)
    minimums = torch.cat([second & 63, third >> 4 | second >> 6 << 4], dim=-1)
    return scales.short(), minimums.short()


def _q2(parts: Parts) -> Fields:
    assert parts.minimums is not None
    scales = parts.scales.to(torch.uint8) | parts.minimums.to(torch.uint8) << 4
    return [scales, _apart(parts.codes, 2, 32), _halves(parts.steps)]


def _from_q2(fields: Fields) -> Parts:
    scales, codes, steps = fields
    return Parts(
        codes=_together(codes, 2, 32),
        scales=(scales & 15).short(),
        minimums=(scales >> 4).short(),
        steps=_floats(steps),
    )


def _q3(parts: Parts) -> Fields:
    scales = (parts.scales + 32).to(torch.uint8)
    low = scales[:, :8] & 15 | (scales[:, 8:] & 15) << 4
    high = (scales >> 4).reshape(-1, 4, 4)  # [n, quarter, place]
    upper = high[:, 0] | high[:, 1] << 2 | high[:, 2] << 4 | high[:, 3] << 6
    codes = [_apart(parts.codes >> 2, 1, 32), _apart(parts.codes & 3, 2, 32)]
    return [*codes, torch.cat([low, upper], dim=-1), _halves(parts.steps)]


def _from_q3(fields: Fields) -> Parts:
    high, low, scales, steps = fields
    nibbles = torch.cat([scales[:, :8] & 15, scales[:, :8] >> 4], dim=-1)
    upper = torch.cat([scales[:, 8:] >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1)
    return Parts(
        codes=_together(low, 2, 32) | _together(high, 1, 32) << 2,
        scales=(nibbles | upper << 4).short() - 32,
        minimums=None,
        steps=_floats(steps),
    )


def _q4(parts: Parts) -> Fields:
    assert parts.minimums is not None
    return [_halves(parts.steps), _six_bits(parts.scales, parts.minimums), _apart(parts.codes, 4, 32)]


def _from_q4(fields: Fields) -> Parts:
    steps, stored, codes = fields
    scales, minimums = _from_six_bits(stored)
    return Parts(codes=_together(codes, 4, 32), scales=scales, minimums=minimums, steps=_floats(steps))


def _q5(parts: Parts) -> Fields:
    assert parts.minimums is not None
    scales, high = _six_bits(parts.scales, parts.minimums), _apart(parts.codes >> 4, 1, 32)
    return [_halves(parts.steps), scales, high, _apart(parts.codes & 15, 4, 32)]


def _from_q5(fields: Fields) -> Parts:
    steps, stored, high, low = fields
    scales, minimums = _from_six_bits(stored)
    codes = _together(low, 4, 32) | _together(high, 1, 32) << 4
    return Parts(codes=codes, scales=scales, minimums=minimums, steps=_floats(steps))


def _q6(parts: Parts) -> Fields:
    scales = parts.scales.to(torch.int8).view(torch.uint8)
    codes = [_apart(parts.codes & 15, 4, 64), _apart(parts.codes >> 4, 2, 32)]
    return [*codes, scales, _halves(parts.steps)]


def _from_q6(fields: Fields) -> Parts:
    low, high, scales, steps = fields
    codes = _together(low, 4, 64) | _together(high, 2, 32) << 4
    return Parts(codes=codes, scales=scales.contiguous().view(torch.int8).short(), minimums=None, steps=_floats(steps))


def _iq4(parts: Parts) -> Fields:
    scales = (parts.scales + 32).to(torch.uint8)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)
    high = ((scales >> 4).reshape(-1, 2, 4) << shifts).sum(-1, dtype=torch.uint8)
    low = scales[:, 0::2] & 15 | (scales[:, 1::2] & 15) << 4
    return [_halves(parts.steps), high, low, _apart(parts.codes, 4, 16)]


def _from_iq4(fields: Fields) -> Parts:
    steps, high, low, codes = fields
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)
    upper = (high.unsqueeze(-1) >> shifts & 3).flatten(1)
    nibbles = torch.stack([low & 15, low >> 4], dim=-1).flatten(1)
    scales = (nibbles | upper << 4).short() - 32
    return Parts(codes=_together(codes, 4, 16), scales=scales, minimums=None, steps=_floats(steps))


LAYOUTS: dict[str, SuperblockLayout] = {
    "q2_k": SuperblockLayout(sizes=(16, 64, 4), to_fields=_q2, to_parts=_from_q2),
    "q3_k": SuperblockLayout(sizes=(32, 64, 12, 2), to_fields=_q3, to_parts=_from_q3),
    "q4_k": SuperblockLayout(sizes=(4, 12, 128), to_fields=_q4, to_parts=_from_q4),
    "q5_k": SuperblockLayout(sizes=(4, 12, 32, 128), to_fields=_q5, to_parts=_from_q5),
    "q6_k": SuperblockLayout(sizes=(128, 64, 16, 2), to_fields=_q6, to_parts=_from_q6),
    "iq4_xs": SuperblockLayout(sizes=(2, 2, 4, 128), to_fields=_iq4, to_parts=_from_iq4),
}
"""Layouts by the name of the scheme."""
