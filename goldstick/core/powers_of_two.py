"""Powers of two: exact factors between floats and the whole numbers that sums over inputs are made of."""

from __future__ import annotations

import torch
from torch import Tensor


def exponents_of(largest: Tensor) -> Tensor:
    """The least e with x < 2^e of each x ≥ 0, int64; 0 for 0."""
    return torch.frexp(largest).exponent.long().clamp_(-960, 1022)


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent, float64, from the bits of the number: pow() may be off by one unit in the last place."""
    return ((exponent + 1023) << 52).view(torch.float64)
