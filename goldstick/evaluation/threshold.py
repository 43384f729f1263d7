"""Whether a loss is within what is allowed: yes, no, or how many more items would decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from goldstick.core.counts import counted
from goldstick.evaluation.compare import ComparisonRow, losses

Outcome = Literal["pass", "fail", "inconclusive"]

DEFAULT_LOSS = 1.0
"""What a model may lose where nobody says how much: so many percent, or points of a score."""

#: How many times as many items decide in four of five cases as in one of two: the quantiles 0.975 and 0.8 of a normal.
_FOUR_OF_FIVE = ((1.96 + 0.8416) / 1.96) ** 2


@dataclass(frozen=True, kw_only=True)
class Loss:
    """How much worse a metric got.

    Args:
        value: positive where it got worse; in ``unit``.
        interval: its 95 % interval over the same items, None without items to pair.
        unit: ``%`` of what it was, of metrics of which lower is better; else ``points``.
    """

    value: float
    interval: tuple[float, float] | None
    unit: Literal["%", "points"]


def loss_of(row: ComparisonRow) -> Loss | None:
    """The loss of a metric; None where its values do not compare."""
    if row.note is not None or row.difference is None:
        return None
    sign = 1 if row.direction == "lower" else -1
    percent = row.direction == "lower" and row.relative is not None
    interval = row.interval
    if percent and row.paired is not None and row.paired.relative_interval is not None:
        interval = (100.0 * row.paired.relative_interval[0], 100.0 * row.paired.relative_interval[1])
    elif percent and interval is not None and row.before:
        interval = (100.0 * interval[0] / row.before, 100.0 * interval[1] / row.before)
    low_high = None if interval is None else sorted(sign * end for end in interval)
    return Loss(
        value=sign * (100.0 * (row.relative or 0.0) if percent else row.difference),
        interval=None if low_high is None else (low_high[0], low_high[1]),
        unit="%" if percent else "points",
    )


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A metric's loss beside what is allowed.

    Args:
        task: the task's name.
        metric: the metric's name.
        outcome: ``pass`` where the whole 95 % interval of the loss is within what is allowed, ``fail`` where all of it
            is beyond, else ``inconclusive``.
        loss: the loss.
        allowed: what is allowed, in the loss's unit.
        items: how many items there are.
        items_needed: about how many would decide in four of five cases, were the loss what it is now: the interval's
            half-width shrinks with the root of their number. None where it is decided, or no number would.
    """

    task: str
    metric: str
    outcome: Outcome
    loss: Loss
    allowed: float
    items: int
    items_needed: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @property
    def words(self) -> str:
        """The outcome and why, in a sentence."""
        assert self.loss.interval is not None
        low, high = self.loss.interval
        unit, allowed = self.loss.unit, f"{self.allowed:g} allowed"
        if self.outcome == "pass":
            return f"pass: no loss larger than {high:.3g} {unit}, {allowed}"
        if self.outcome == "fail":
            return f"fail: loses at least {low:.3g} {unit}, {allowed}"
        more = "no number of items would" if self.items_needed is None else f"about {self.items_needed:,} items would"
        return f"inconclusive: loses {low:.3g} to {high:.3g} {unit}, {allowed}; {more} decide, there are {self.items:,}"


def judge(rows: Sequence[ComparisonRow], allowed: float = DEFAULT_LOSS) -> list[Judged]:
    """Judge each loss that has an interval, each of them once (see :func:`goldstick.evaluation.compare.losses`).

    Args:
        rows: the comparison.
        allowed: the largest loss, in percent for metrics of which lower is better, else in points.
    """
    found = []
    for row in losses(rows):
        loss = loss_of(row)
        if loss is None or loss.interval is None or row.paired is None:
            continue
        low, high = loss.interval
        outcome: Outcome = "pass" if high <= allowed else "fail" if low > allowed else "inconclusive"
        needed = None
        if outcome == "inconclusive" and loss.value != allowed:
            half = high - loss.value if loss.value < allowed else loss.value - low
            needed = math.ceil(row.paired.items * _FOUR_OF_FIVE * (half / (allowed - loss.value)) ** 2)
        found.append(
            Judged(
                task=row.task,
                metric=row.metric,
                outcome=outcome,
                loss=loss,
                allowed=allowed,
                items=row.paired.items,
                items_needed=needed,
            )
        )
    return found


def summary(judged: Sequence[Judged]) -> str:
    """How many losses are within what is allowed, in words."""
    within = sum(one.outcome == "pass" for one in judged)
    units = " or ".join(dict.fromkeys(one.loss.unit for one in judged))
    units = units.replace("points", "point") if judged[0].allowed == 1 else units
    of = f"{within} of {counted(len(judged), 'loss', 'losses')}"
    return f"{of} shown to be at most {judged[0].allowed:g} {units}, at 95 %"


def overall(judged: Sequence[Judged]) -> Outcome:
    """The outcome of all together: ``fail`` where one fails, ``pass`` where all pass."""
    outcomes = {one.outcome for one in judged}
    return "fail" if "fail" in outcomes else "pass" if outcomes == {"pass"} else "inconclusive"
