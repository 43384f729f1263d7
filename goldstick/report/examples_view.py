"""The answers of two models side by side, as a page and the terminal show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from goldstick.core.counts import counted


def examples_view(found: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """A row for each example, both answers cut where they part; None where there is none.

    Args:
        found: What `goldstick.evaluation.examples.side_by_side` returns.
    """
    return {"words": examples_words(found), "rows": [_row(one) for one in found]} if found else None


def examples_words(found: Sequence[Mapping[str, Any]]) -> str:
    """How many answers are the same, in a sentence."""
    same = sum(one["before"] == one["after"] for one in found)
    return f"{same} of {counted(len(found), 'answer')} the same before and after"


def examples_lines(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each example in lines for the terminal, and how many are the same."""
    for one in found:
        task = "prompt" if one["task"] is None else one["task"]
        yield f"{task}: {one['item']!r}"
        answers = [("before", one["before"]), ("after", one["after"]), ("expected", one["expected"])]
        yield from (f"  {name}: {answer!r}" for name, answer in answers if answer is not None)
    yield examples_words(found)


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    before, after = one["before"], one["after"]
    places = enumerate(zip(before, after, strict=False))
    shared = before[: next((place for place, (one, other) in places if one != other), min(len(before), len(after)))]
    if before != after and not shared.endswith((" ", "\n")):
        # The word in which they part is marked as a whole.
        shared = shared[: max(shared.rfind(" "), shared.rfind("\n")) + 1]
    return {
        "task": one["task"] or "prompt",
        "item": one["item"],
        "expected": one["expected"] or "",
        "shared": shared,
        "before": before[len(shared) :],
        "after": after[len(shared) :],
        "same": before == after,
    }
