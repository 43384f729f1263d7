"""Evaluations as what a page shows: each metric, how sure it is, and what its change means in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from goldstick.core.counts import counted
from goldstick.errors import DataError
from goldstick.evaluation.compare import SAME_LOSS, ComparisonRow, compare, losses
from goldstick.evaluation.threshold import DEFAULT_LOSS, judge
from goldstick.report.examples_view import examples_view
from goldstick.report.loss_view import loss_rows, verdict_figure
from goldstick.report.words import format_bytes, verdict


def accuracy_view(
    after: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    divergence: Mapping[str, Any] | None = None,
    max_loss: float = DEFAULT_LOSS,
) -> dict[str, Any] | None:
    """The table of an evaluation (what ``Evaluation.to_dict`` returns), beside its baseline where there is one.

    None where nothing was evaluated.

    Args:
        after: the evaluation.
        before: that of the model it is compared with.
        divergence: how far both predict apart on each text (what `goldstick.evaluation.divergence` found).
        max_loss: what may be lost, in percent or in points of a score.
    """
    if not after.get("tasks"):
        return None
    rows = [] if before is None else compare(after, before)
    changes = {(row.task, row.metric): row for row in rows}
    lines = [
        _line(task, metric, result, changes.get((task, metric)))
        for task, result in after["tasks"].items()
        for metric in result["metrics"]
    ]
    if before is not None:
        lines += [
            _prediction_line(task, *named, found) for task, found in (divergence or {}).items() for named in _APART
        ]
    lost = [row for row in changes.values() if row.after is None]
    judged = judge(rows, max_loss)
    return {
        "rows": lines,
        "compared": before is not None,
        "summary": _summary(losses(rows)),
        "figures": verdict_figure(judged) + _figures(losses(rows)),
        "losses": loss_rows(judged),
        "only_before": [f"{row.task}, {row.metric}: {_number(row.before)} before" for row in lost],
        "tokenizers": sorted({str(result["tokenizer"]) for result in after["tasks"].values() if "tokenizer" in result}),
    }


def evaluation_view(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the template of an evaluation's page is given: title, headline and table; DataError without a task.

    Args:
        data: What ``Evaluation.to_dict`` returns, with ``model`` (what `goldstick.jobs.evaluate.about` says of it) and
            the ``baseline``, an evaluation like it, where there are such.
    """
    allowed = data.get("max_loss")
    accuracy = accuracy_view(
        data, data.get("baseline"), data.get("divergence"), DEFAULT_LOSS if allowed is None else allowed
    )
    if accuracy is None:
        raise DataError("the evaluation holds no task")
    model, baseline = data.get("model") or {}, (data.get("baseline") or {}).get("model") or {}
    lines = [("Model", model.get("name")), ("Compared with", baseline.get("name")), ("Recipe", model.get("recipe"))]
    if model.get("bytes"):
        before = f"{format_bytes(baseline['bytes'])} → " if baseline.get("bytes") else ""
        lines.append(("Size of its files", f"{before}{format_bytes(model['bytes'])}"))
    if model.get("input_bits"):
        lines.append(("Inputs of quantized layers", f"rounded to {model['input_bits']} bits by the CPU's kernels"))
    if model.get("bits_per_weight"):
        lines.append(("Bits per quantized weight", f"{model['bits_per_weight']:.2f}, scales and zeros counted"))
    return {
        "title": f"{model['name']}: evaluated" if model else "Evaluation",
        "headline": [(name, value) for name, value in lines if value],
        "figures": accuracy["figures"],
        "accuracy": accuracy,
        "categories": categories_of(data, data.get("baseline") or {}),
        "examples": examples_view(data.get("examples") or ()),
    }


def categories_of(after: Mapping[str, Any], before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each task that has categories, a row for each: name, items, figure before (or nothing) and now, interval."""
    found = []
    for task, result in after["tasks"].items():
        own = result.get("details", {}).get("categories") or {}
        old = before.get("tasks", {}).get(task, {}).get("details", {}).get("categories") or {}
        rows = [
            (
                name,
                f"{category['n']:,}",
                _number(old[name]["accuracy"]) if name in old else "",
                _number(category["accuracy"]),
                _interval(category["interval_95"], ".4g"),
            )
            for name, category in own.items()
        ]
        found += [{"task": task, "rows": rows, "compared": bool(old)}] if rows else []
    return found


def headline_of(accuracy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The summary of an `accuracy_view`, and each metric in a line."""
    lines = [("Accuracy", accuracy["summary"])] if accuracy["summary"] else []
    there = {(row["task"], row["metric"]) for row in accuracy["rows"]}
    for row in accuracy["rows"]:
        if _repeats(row, there):
            continue
        words = f"{row['before']} → {row['value']}" if row.get("before") else row["value"]
        if row.get("difference_interval"):
            words += f", difference {row['difference']} (95 %: {row['difference_interval']})"
        elif row["interval"]:
            words += f" (95 %: {row['interval']})"
        words += f": {row['verdict']}" if row.get("verdict") else ""
        lines.append((f"{row['task']}, {row['metric']}", words))
    return lines


def _repeats(row: Mapping[str, str], there: Collection[tuple[str, str]]) -> bool:
    """Whether a row of the table says what another one says, in other units."""
    others = SAME_LOSS.get(row["metric"].replace(" ", "_"), ())
    return any((row["task"], other.replace("_", " ")) in there for other in others)


def _line(task: str, metric: str, result: Mapping[str, Any], change: ComparisonRow | None) -> dict[str, str]:
    line = {
        "task": task,
        "metric": metric.replace("_", " "),
        "value": _number(result["metrics"][metric]),
        "interval": _interval((result.get("details", {}).get("interval_95") or {}).get(metric), ".4g"),
        "n": f"{result['n']:,}",
        "protocol": str(result["protocol"]),
    }
    if change is None:
        return line
    return line | {
        "before": _number(change.before),
        "difference": "" if change.difference is None else f"{change.difference:+.3g}",
        "relative": "" if change.relative is None else f"{100.0 * change.relative:+.2f} %",
        "difference_interval": _interval(change.interval, "+.3g"),
        "better": "lower is better" if change.direction == "lower" else "higher is better",
        "verdict": verdict(change),
        "severity": _severity(change),
    }


_APART = (
    ("token_kl", "mean KL from before, nats a token", "lower is better", ".3g"),
    ("top1_agreement", "likeliest token the same as before, %", "higher is better", ".2f"),
)


def _prediction_line(
    task: str, metric: str, title: str, better: str, form: str, found: Mapping[str, Any]
) -> dict[str, str]:
    """A figure that compares two models by itself: it has no value before, and no difference."""
    return {
        "task": task,
        "metric": title,
        "value": f"{found['metrics'][metric]:{form}}",
        "interval": _interval(found["details"]["interval_95"][metric], form),
        "n": f"{found['n']:,}",
        "protocol": str(found["protocol"]),
        "before": "",
        "difference": "",
        "relative": "",
        "difference_interval": "",
        "better": better,
        "verdict": f"over {counted(found['details']['tokens_predicted'], 'token')}",
        "severity": "neutral",
    }


def _severity(change: ComparisonRow) -> str:
    """Good or bad only where the items show it."""
    if not change.shown:
        return "neutral"
    return "bad" if change.worse else "good"


def _summary(changes: Sequence[ComparisonRow]) -> str:
    """How many metrics changed which way, in a sentence; empty where nothing was compared."""
    if not changes:
        return ""
    worse = sum(_severity(change) == "bad" for change in changes)
    better = sum(_severity(change) == "good" for change in changes)
    alone = sum(change.interval is None and change.difference != 0 for change in changes)
    same = len(changes) - worse - better - alone
    unjudged = f", {alone} without an interval to judge by" if alone else ""
    shown = f"{worse} worse, {better} better, {same} without a difference shown{unjudged}"
    return f"Of {counted(len(changes), 'metric')} compared, {shown}."


def _figures(changes: Sequence[ComparisonRow]) -> list[tuple[str, str, str]]:
    """The summary as a figure: how many metrics got worse, of those compared."""
    if not changes:
        return []
    worse = sum(_severity(change) == "bad" for change in changes)
    words = "metric got worse" if len(changes) == 1 else "metrics got worse"
    return [(f"{worse} of {len(changes)}", f"{words}, as far as the items show", "bad" if worse else "good")]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _interval(interval: Sequence[float] | None, form: str) -> str:
    return "" if interval is None else f"{interval[0]:{form}} … {interval[1]:{form}}"
