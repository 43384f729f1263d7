"""Comparing an evaluation with its baseline, metric by metric."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from goldstick.evaluation.evaluate import Evaluation
from goldstick.evaluation.metrics import Items
from goldstick.evaluation.paired import Paired, compare_items

LOWER_IS_BETTER = frozenset({"perplexity", "word_perplexity", "bits_per_byte"})
DEPENDS_ON_TOKENIZER = frozenset({"perplexity"})
#: Metrics that say the loss of another one again, in other units: each with those it repeats.
SAME_LOSS = {"bits_per_byte": ("perplexity", "word_perplexity")}


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One metric of one task, before and after.

    Args:
        task: the task's name.
        metric: the metric's name.
        before: the baseline's value, None where it has none.
        after: the evaluation's value, None where it has none.
        direction: which way is better.
        difference: after - before, None unless both are there and comparable.
        relative: the difference as a fraction of ``before``, None where that is 0 or there is no difference.
        paired: what the same items say of the difference, None without items to pair.
        note: why the values do not compare, or None.
    """

    task: str
    metric: str
    before: float | None
    after: float | None
    direction: Literal["lower", "higher"]
    difference: float | None = None
    relative: float | None = None
    paired: Paired | None = None
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, with what is concluded of them: ``shown`` and ``worse``."""
        return {**dataclasses.asdict(self), "shown": self.shown, "worse": self.worse}

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the difference over the same items, None without items to pair."""
        return None if self.paired is None else self.paired.interval

    @property
    def shown(self) -> bool:
        """Whether the items show a difference: its 95 % interval leaves 0 out, and McNemar's p < 0.05 of accuracies."""
        if self.paired is None or self.paired.interval is None:
            return False
        low, high = self.paired.interval
        return not low <= 0 <= high and (self.paired.p_value is None or self.paired.p_value < 0.05)

    @property
    def worse(self) -> bool:
        """Whether the metric moved the wrong way, by however little."""
        if self.difference is None:
            return False
        return self.difference > 0 if self.direction == "lower" else self.difference < 0


def compare(
    evaluation: Evaluation | Mapping[str, Any], baseline: Evaluation | Mapping[str, Any]
) -> list[ComparisonRow]:
    """Return a row for each metric of each task in either of the two, in the evaluation's order.

    Both may be given as `Evaluation` or as what its ``to_dict`` returned. Values under different protocols,
    over different numbers of items or, for perplexity, with different tokenizers get no difference and a note
    instead.
    """
    after, before = _tasks(evaluation), _tasks(baseline)
    return [row for name in {**after, **before} for row in _compare_task(name, after.get(name), before.get(name))]


def losses(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """The metrics that compare, each loss once: bits per byte count only where no perplexity of that text does."""
    there = {(row.task, row.metric) for row in rows if row.difference is not None}
    return [
        row
        for row in rows
        if row.difference is not None and not any((row.task, other) in there for other in SAME_LOSS.get(row.metric, ()))
    ]


def _tasks(evaluation: Evaluation | Mapping[str, Any]) -> Mapping[str, Any]:
    data = evaluation.to_dict() if isinstance(evaluation, Evaluation) else evaluation
    tasks: Mapping[str, Any] = data["tasks"]
    return tasks


def _compare_task(name: str, after: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> list[ComparisonRow]:
    new, old = (after or {}).get("metrics", {}), (before or {}).get("metrics", {})
    return [_compare_metric(name, metric, after, before) for metric in {**new, **old}]


def _compare_metric(
    name: str, metric: str, after: Mapping[str, Any] | None, before: Mapping[str, Any] | None
) -> ComparisonRow:
    new = (after or {}).get("metrics", {}).get(metric)
    old = (before or {}).get("metrics", {}).get(metric)
    note = _why_not(metric, after, before, new, old)
    difference = None if note else new - old
    return ComparisonRow(
        task=name,
        metric=metric,
        before=old,
        after=new,
        direction="lower"
        if metric in LOWER_IS_BETTER | _said_to_be_lower(after) | _said_to_be_lower(before)
        else "higher",
        difference=difference,
        relative=None if difference is None or old == 0 else difference / old,
        paired=None if note else _paired(metric, after, before),
        note=note,
    )


def _why_not(
    metric: str,
    after: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None,
    new: float | None,
    old: float | None,
) -> str | None:
    if after is None or before is None or new is None or old is None:
        return "only before" if new is None else "only after"
    if after["protocol"] != before["protocol"]:
        return f"protocols differ: {before['protocol']} before, {after['protocol']} after"
    if after["n"] != before["n"]:
        return f"items differ: {before['n']} before, {after['n']} after"
    if metric in DEPENDS_ON_TOKENIZER and after.get("tokenizer") != before.get("tokenizer"):
        return "tokenizers differ"
    if not (math.isfinite(new) and math.isfinite(old)):
        return "not finite"
    return None


def _said_to_be_lower(side: Mapping[str, Any] | None) -> set[str]:
    """Metrics of which a task says itself that lower is better."""
    return set(((side or {}).get("details") or {}).get("lower_is_better", ()))


def _paired(metric: str, after: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> Paired | None:
    items = [((side or {}).get("details") or {}).get("items", {}).get(metric) for side in (after, before)]
    if items[0] is None or items[1] is None:
        return None
    return compare_items(Items.from_dict(items[0]), Items.from_dict(items[1]))
