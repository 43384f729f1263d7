"""Losses beside what is allowed, as a page shows them: the verdict, and each loss with its interval drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from goldstick.evaluation.threshold import Judged, overall, summary
from goldstick.report.svg import interval

_SEVERITY = {"pass": "good", "fail": "bad", "inconclusive": "neutral"}


def verdict_figure(judged: Sequence[Judged]) -> list[tuple[str, str, str]]:
    """The verdict on all metrics together, as a figure."""
    if not judged:
        return []
    outcome = overall(judged)
    return [(outcome, summary(judged), _SEVERITY[outcome])]


def loss_rows(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """A row for each loss with its interval, drawn on one scale for percent and one for points."""
    found = []
    for one in judged:
        assert one.loss.interval is not None
        low, high = one.loss.interval
        alike = [other for other in judged if other.loss.unit == one.loss.unit]
        reach = 1.1 * max(max(map(abs, other.loss.interval or ()), default=0.0) for other in alike)
        words = f"{one.loss.value + 0.0:+.3g} {one.loss.unit} ({low:+.3g} … {high:+.3g})"
        drawn = interval(low, one.loss.value, high, one.allowed, max(reach, 1.1 * one.allowed), words)
        found.append(
            {
                "name": f"{one.task}, {one.metric.replace('_', ' ')}",
                "loss": words,
                "drawing": drawn,
                "outcome": one.outcome,
                "words": one.words.partition(": ")[2],
                "severity": _SEVERITY[one.outcome],
            }
        )
    return found
