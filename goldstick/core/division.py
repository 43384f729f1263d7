"""Dividing tasks over ranks by what they cost, and whether that was even: numbers alone, the same on every rank."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

#: How many times the median rank's work a rank has to take to be called slow, and the least seconds it must be behind.
_SLOW, _SLOW_SECONDS = 1.5, 10.0
_UPPER_ROWS, _UPPER_PARTS = 128, 16


def balanced(costs: Sequence[float], count: int) -> list[int]:
    """Which of ``count`` ranks does each of some tasks: the longest first, each to the rank with least to do so far.

    Args:
        costs: What each takes, in any unit; what costs nothing is the first's.
        count: How many ranks there are.
    """
    busy, owners = [0.0] * count, [0] * len(costs)
    for task in sorted(range(len(costs)), key=lambda task: -costs[task]):
        if costs[task]:
            # The first also writes: of equals it comes last.
            owners[task] = min(range(count - 1, -1, -1), key=lambda rank: busy[rank])
            busy[owners[task]] += costs[task]
    return owners


def windows(costs: Sequence[float], most: float) -> Iterator[range]:
    """Neighbouring tasks whose costs together are at most so much, or one task alone."""
    start, total = 0, 0.0
    for task, cost in enumerate(costs):
        if task > start and total + cost > most:
            yield range(start, task)
            start, total = task, 0.0
        total += cost
    yield range(start, len(costs))


def parts_of_upper(size: int) -> list[slice]:
    """The rows of a square matrix in parts, each of which is sent from its diagonal on: just over half of it in all.

    128 rows are a part, or as many as make 16 parts.
    """
    rows = max(_UPPER_ROWS, -(-size // _UPPER_PARTS))
    return [slice(start, min(start + rows, size)) for start in range(0, size, rows)]


def upper_share(size: int) -> float:
    """What :func:`parts_of_upper` sends of a square matrix."""
    sent: int = sum((part.stop - part.start) * (size - part.start) for part in parts_of_upper(size))
    return sent / float(size**2)


def slow_ranks(work_seconds: Sequence[float]) -> list[str]:
    """A sentence for each rank that took far longer for its work than the median of all."""
    usual = statistics.median_low(work_seconds) if work_seconds else 0.0
    return [
        f"rank {number} worked {seconds:.0f} s, and the ranks' median is {usual:.0f} s: its machine is slower, or busy "
        "with something else, and the others waited for it"
        for number, seconds in enumerate(work_seconds)
        if seconds > _SLOW * usual and seconds - usual > _SLOW_SECONDS
    ]
