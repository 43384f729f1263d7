"""How large a loss is at most, with so much confidence, from the losses of rows that were not searched on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

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
    """The quantile of Student's t, by its expansion around the normal one (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(confidence)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / degrees**power for power, term in enumerate(terms))
