"""What a search found, in words: on a terminal and in a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from goldstick.core.counts import counted
from goldstick.report.words import format_bytes


def search_words(record: Mapping[str, Any]) -> list[str]:
    """Lines: the size, the loss on held-out rows, and the next uniform scheme."""
    return [f"{name}: {words}" for name, words in search_pairs(record)]


def search_pairs(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same as pairs of a name and words."""
    whole = record["whole"]
    lines = [
        ("size", f"{record['bytes']:,} bytes of weight files, {record['bits_per_weight']:.4g} bits a weight"),
        (
            "loss",
            f"KL {whole['kl']:.4g} ± {whole['half_width']:.2g} nats per token on "
            f"{counted(whole['rows'], 'held-out row')}, {record['rounded']}",
        ),
    ]
    if uniform := [one for one in record["uniform"] if one["bytes"] <= record["bytes"] * 1.01]:
        best = min(uniform, key=lambda one: one["measured"])
        lines.append(
            ("one scheme for all", f"{best['scheme']}: KL {best['measured']:.4g} in {format_bytes(best['bytes'])}")
        )
    return lines


def searched_rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each group of layers: what it became, and the loss of that beside the next candidates, alone."""
    rows = []
    for group in record.get("groups", ()):
        candidates = unbeaten(group)
        place = next(number for number, one in enumerate(candidates) if one["scheme"] == group["chosen"])
        around = [candidates[near] if 0 <= near < len(candidates) else None for near in (place - 1, place + 1)]
        smaller, larger = ("" if one is None else f"{one['scheme']}: {one['loss']:.1e}" for one in around)
        rows.append(
            {
                "name": group["name"],
                "count": 1,
                "became": group["chosen"],
                "loss": f"{candidates[place]['loss']:.1e}",
                "smaller": smaller,
                "larger": larger,
            }
        )
    return rows


def unbeaten(group: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The candidates of a group that lose less than all smaller ones, and the chosen one; the smallest first."""
    found: list[Mapping[str, Any]] = []
    least = float("inf")
    for one in group["candidates"]:
        if one["loss"] < least or one["scheme"] == group["chosen"]:
            found.append(one)
            least = min(least, one["loss"])
    return found
