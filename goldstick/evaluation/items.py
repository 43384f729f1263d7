"""What single items gave: apart from the results that sum them up, a line of JSON for each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any


def without_items(found: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of results, or of what holds some, without the ``details.items`` of each task."""
    return {key: _without_items(key, value) for key, value in found.items()}


def _without_items(key: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    kept = without_items(value)
    if key == "details":
        kept.pop("items", None)
    return kept


def item_lines(found: Mapping[str, Any], **more: Any) -> Iterator[str]:
    """A JSON object a line for each item of each metric of each task of what ``Evaluation.to_dict`` returned.

    Its ``task``, ``metric``, ``item`` (its number from 0) and ``value``, and its ``weight`` where items have one.

    Args:
        found: The results.
        more: What every line says besides.
    """
    for task, result in found["tasks"].items():
        for metric, items in (result["details"].get("items") or {}).items():
            weights = items.get("weights")
            for number, value in enumerate(items["values"]):
                line = {**more, "task": task, "metric": metric, "item": number, "value": _plain(value)}
                line |= {"weight": weights[number]} if weights else {}
                yield json.dumps(line)


def _plain(value: float) -> float | str:
    """A number as reports have it: JSON has no name for those that are not finite."""
    return value if math.isfinite(value) else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
