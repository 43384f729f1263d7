"""How large a loss is at most, with so much confidence, from the losses of rows that were not searched on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

#: How often a search that is to keep a loss may look at the held-out rows.
MOST_LOOKS = 10


def upper_bound(losses: Sequence[float], confidence: float) -> float:
    """The one-sided upper bound of a mean, by Student's t: x̄ + t · s / √n.

    Args:
        losses: One number for each row; two at least.
        confidence: Such as 0.95.
    """
    n = len(losses)
    return fmean(losses) + _student(confidence, n - 1) * stdev(losses) / math.sqrt(n)


def _student(confidence: float, degrees: int) -> float:
    """The quantile of Student's t: where its distribution, exact for whole degrees of freedom, reaches a confidence."""
    low, high = 0.0, 1.0
    while _below(high, degrees) < confidence:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _below(middle, degrees) < confidence else (low, middle)
    return high


def _below(t: float, degrees: int) -> float:
    """How likely Student's t is to be below ``t`` ≥ 0: a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(degrees))
    square, odd = math.cos(angle) ** 2, degrees % 2
    term, terms = math.cos(angle) if odd else 1.0, list[float]()
    for power in range(2 + odd, degrees + 1, 2):
        terms.append(term)
        term *= square * (power - 1) / power
    sum_ = math.sin(angle) * math.fsum(terms)
    return 0.5 + ((angle + sum_) / math.pi if odd else sum_ / 2)
