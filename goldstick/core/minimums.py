"""Minimums in the place of zeros: w = scale · code + minimum is (code − zero) · scale, zero = −minimum / scale.

A minimum of −0 is a zero of 0 and a minimum of 0 a zero of −0, so that files come back as they were, bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor


def zeros_of(scale: Tensor, minimum: Tensor) -> Tensor:
    """−minimum / scale, float32, perhaps fractions; of a scale of 0 the sign of −minimum.

    Args:
        scale: float [...].
        minimum: float [...].
    """
    ratio = -minimum.double() / scale.double()
    alone = torch.where(minimum == 0, -minimum.double(), -minimum.double().sign())
    return torch.where(scale == 0, alone, ratio).float()


def minimums_of(scale: Tensor, zero: Tensor) -> Tensor:
    """−zero · scale in float16."""
    return (-zero.double() * scale.double()).to(torch.float16)


def scales_with_zeros(scale: Tensor, minimum: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scales, zeros, and which groups are constant.

    A group whose scale is 0 holds its minimum alone: with the codes 0, the scale |minimum| and the zero ∓1 give it
    exactly.
    """
    constant = (scale == 0) & (minimum != 0)
    return torch.where(constant, minimum.abs(), scale), zeros_of(scale, minimum), constant
