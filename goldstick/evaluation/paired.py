"""Two models on the same items: how far apart they are, and what chance could explain of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from goldstick.evaluation.metrics import Items, bootstrap_interval, paired_interval

_NORMAL_95 = 1.959963984540054


@dataclass(frozen=True, kw_only=True)
class Paired:
    """What the same items say of the difference of a metric between two models.

    Args:
        items: how many items there are.
        changed: how many of them differ in their value.
        interval: the 95 % interval of metric(after) − metric(before); None for a single item. Where items are right
            or wrong it is Agresti and Min's, else that of the bootstrap.
        relative_interval: the same of metric(after) / metric(before) − 1, by the bootstrap; None where a metric may
            be 0, and for a single item.
        p_value: McNemar's, where every item is right or wrong; else None.
    """

    items: int
    changed: int
    interval: tuple[float, float] | None
    relative_interval: tuple[float, float] | None
    p_value: float | None


def compare_items(after: Items, before: Items) -> Paired:
    """Return what paired items say. Raises ValueError where their numbers differ."""
    changed = sum(new != old for new, old in zip(after.values, before.values, strict=True))
    if right_or_wrong(after) and right_or_wrong(before):
        lost = sum(new < old for new, old in zip(after.values, before.values, strict=True))
        return Paired(
            items=len(after.values),
            changed=changed,
            interval=discordant_interval(changed - lost, lost, len(after.values)) if len(after.values) > 1 else None,
            relative_interval=None,
            p_value=mcnemar(changed - lost, lost),
        )
    positive = after.exponential or (min([*after.values, *before.values]) > 0)

    return Paired(
        items=len(after.values),
        changed=changed,
        interval=paired_interval(after, before),
        relative_interval=_relative_interval(after, before) if positive else None,
        p_value=None,
    )


def right_or_wrong(items: Items) -> bool:
    """Whether every item is 0 or 1, counts once, and the metric is their mean in percent."""
    plain = items.weights is None and not items.exponential and items.factor == 100.0
    return plain and all(value in (0, 1) for value in items.values)


def mcnemar(gained: int, lost: int) -> float:
    """Return the two-sided p-value of McNemar's test, exactly: 2·P(X ≤ min(gained, lost)), X ~ Binomial(n, ½).

    Only the n = ``gained`` + ``lost`` items that one model has right and the other wrong say anything (McNemar 1947).
    The binomial is summed in whole numbers at any n, so that no approximation for many items is needed; 1 where n = 0.
    """
    n = gained + lost
    term, total = 1, 0
    for k in range(min(gained, lost) + 1):
        total += term
        term = term * (n - k) // (k + 1)
    p_value: float = 2 * total / 2**n
    return min(1.0, p_value)


def discordant_interval(gained: int, lost: int, items: int) -> tuple[float, float]:
    """Return the 95 % interval, in points, of the difference of two accuracies over the same ``items``.

    d ± z·√(((b + c) − (b − c)²/N) / N²) with d = (b − c)/N, b = ``gained`` + ½, c = ``lost`` + ½, N = ``items`` + 2
    (Agresti and Min 2005, Statistics in Medicine 24). Unlike the bootstrap it does not shrink to nothing where no item,
    or only a few, changed: no change among 100 items is no proof that none would change among 10,000.
    """
    b, c, n = gained + 0.5, lost + 0.5, items + 2
    middle = (b - c) / n
    half = _NORMAL_95 * math.sqrt((b + c) - (b - c) ** 2 / n) / n
    return 100.0 * max(-1.0, middle - half), 100.0 * min(1.0, middle + half)


def _relative_interval(after: Items, before: Items) -> tuple[float, float] | None:
    def ratio(chosen: object) -> float:
        return after.metric(chosen) / before.metric(chosen) - 1  # type: ignore[arg-type]

    return bootstrap_interval(ratio, len(after.values))
