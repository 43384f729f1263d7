"""Stored scales of float elements: which scale a group of some magnitude gets, on the grid that scales lie on."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.grid import POWERS_OF_TWO, Grid
from goldstick.core.rows import all_finite
from goldstick.errors import QuantizationError

_FLOAT8 = torch.float8_e4m3fn
_FLOAT8_LARGEST = 448.0
#: What a scale of FP8 that would be 0 becomes, as compressed-tensors has it.
_FLOAT8_LEAST = 0.125
#: Scales up to which a search leaves room to grow by half: 1.5 · 256 ≤ 448.
_FLOAT8_WITH_ROOM = 256.0
_BIAS = 127
_LEAST_FLOAT16 = 2.0**-24


def stored_scale(largest: Tensor, grid: Grid, dtype: torch.dtype, global_scale: Tensor | None = None) -> Tensor:
    """The scale of groups whose largest magnitude is given, in ``dtype``, of numbers that can be stored.

    max|w| / the element's largest, rounded to the grid of the scales: to ``dtype`` itself; to a power of two, which
    maps max|w| into the element's last binade (compressed-tensors' rule: max|w| is first rounded to a power of two
    with the element's precision, of FP8 with one bit); or to FP8, times the ``global_scale``. A group of zeros
    gets a scale that is not zero.

    Args:
        largest: max|w| of every group, float [...]. The quotient is taken in its dtype.
        grid: The grid, of a float element.
        dtype: What scales are kept in.
        global_scale: float32, broadcast; what the scale of a group is divided by.

    Raises:
        QuantizationError: A scale does not fit ``dtype``.
    """
    element = grid.float_element
    if element is None:
        raise QuantizationError("Scales of integers come from their ranges.")
    if grid.scale == POWERS_OF_TWO:
        precision = 1 if element.bits == 8 else element.mantissa_bits
        scale = _power_of_two(largest.float(), element.largest, precision)
        if dtype == torch.float16:  # which has no 2^−127
            scale = torch.where(largest == 0, 1.0, scale.clamp(min=_LEAST_FLOAT16))
        return scale.to(dtype)
    scale = largest / element.largest
    if global_scale is not None:
        local = (global_scale * scale.float()).clamp(max=_FLOAT8_LARGEST).to(_FLOAT8).float()
        return torch.where(local == 0, _FLOAT8_LEAST, local).to(dtype)
    scale = scale.to(dtype)
    if not all_finite(scale):
        raise QuantizationError(f"A scale of {float(largest.max()):.3g} does not fit {dtype}; use float32.")
    return torch.where(scale == 0, torch.finfo(dtype).eps, scale)


def global_scale_for(largest: Tensor, grid: Grid, room: bool = False) -> Tensor:
    """What the scales of a tensor are divided by: 448 · the element's largest / max|w|, float32.

    Of zeros alone it is 1, and with room ½, so that both can be told from each other there, too.

    Args:
        largest: max|w| of the tensor, float []; the quotient is taken in its dtype.
        grid: A grid whose scales have a scale.
        room: Whether scales half as large again are to fit, for a search among them (2512.02010); it is the power of
            two below, then, so that layers can share one without a change of their numbers.
    """
    reach = (_FLOAT8_WITH_ROOM if room else _FLOAT8_LARGEST) * grid.steps_to_end
    largest = largest.clamp(min=torch.finfo(largest.dtype).tiny)
    divisor = (reach / largest).nan_to_num(nan=1.0, posinf=1.0).float()
    if not room:
        return divisor
    below = torch.ldexp(torch.ones_like(divisor), torch.frexp(divisor).exponent - 1)
    return torch.where(torch.isinf(reach / largest), 0.5, below)


def _power_of_two(largest: Tensor, reach: float, precision: int) -> Tensor:
    """2^e with e = ⌊log₂ R(largest)⌋ − ⌊log₂ reach⌋, where R rounds to ``precision`` bits after the first; float32."""
    mantissa, exponent = torch.frexp(largest)  # largest = mantissa · 2^exponent, mantissa in [½, 1)
    up = 2 * mantissa >= 2 - 2.0 ** -(precision + 1)
    offset = torch.frexp(torch.tensor(reach, dtype=largest.dtype, device=largest.device)).exponent.to(exponent.device)
    power = (exponent + up - offset).clamp(-_BIAS, _BIAS)
    power = torch.where(largest == 0, -_BIAS, power)
    return torch.ldexp(torch.ones_like(largest), power)


def exponent_codes(scale: Tensor) -> Tensor:
    """The e8m0 codes of scales that are powers of two, uint8 of their shape; inverse of :func:`scales_of_exponents`."""
    exponent = torch.frexp(scale.float()).exponent - 1 + _BIAS
    return torch.where(scale == 0, 0, exponent).clamp(0, 254).to(torch.uint8)


def scales_of_exponents(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """2^(e − 127) of e8m0 codes.

    Raises:
        QuantizationError: A code is 255, which stands for no number, or a scale is too large for ``dtype``.
    """
    if bool((codes == 255).any()):
        raise QuantizationError("its scales hold the e8m0 code 255, which stands for no number. Quantize it again.")
    ones = torch.ones(codes.shape, dtype=torch.float32, device=codes.device)
    scale = torch.ldexp(ones, codes.int() - _BIAS).to(dtype)
    if not all_finite(scale):
        raise QuantizationError(f"its scales reach 2^{int(codes.max()) - _BIAS}, too much for {dtype}; use float32.")
    return scale


def packed_scale_dtype(grid: Grid) -> torch.dtype | None:
    """The dtype in which files hold the scales of a grid; ``None`` where they are floats of the layer's dtype."""
    if grid.scale is None:
        return None
    if grid.superblock is not None:
        return torch.int8
    return torch.uint8 if grid.scale == POWERS_OF_TWO else _FLOAT8


def pack_scale(scale: Tensor, grid: Grid) -> Tensor:
    """Scales as files hold them: exponents, FP8, whole numbers of superblocks, or as they are."""
    if grid.scale is None:
        return scale
    if grid.superblock is not None:
        return scale.to(torch.int8)
    return exponent_codes(scale) if grid.scale == POWERS_OF_TWO else scale.to(_FLOAT8)


def check_stored_scales(scale: Tensor, divisor: Tensor | None) -> None:
    """Refuse scales from a file that are no numbers, and what they are divided by where it is not positive.

    Raises:
        QuantizationError: One is NaN or infinite, or the divisor zero or negative.
    """
    if not scale.is_meta and not all_finite(scale):
        raise QuantizationError("its scales are not all numbers: some are NaN or infinite. Quantize it again.")
    if divisor is not None and not divisor.is_meta:
        wrong = divisor[~(torch.isfinite(divisor) & (divisor > 0))]
        if len(wrong):
            raise QuantizationError(
                f"what its scales are divided by is {float(wrong[0])}; it is a positive number. Quantize it again."
            )


def unpack_scale(stored: Tensor, grid: Grid) -> Tensor:
    """Scales from a file, those of a grid in float32; inverse of :func:`pack_scale`."""
    if grid.scale is None:
        return stored
    return scales_of_exponents(stored, torch.float32) if grid.scale == POWERS_OF_TWO else stored.float()
