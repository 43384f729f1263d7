"""What a search found, in words: on a terminal and in a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from statistics import fmean
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
    if pruning := record.get("pruning"):
        lines.append(("channels", channel_words(pruning)))
    if rival := record.get("rival"):
        lines.append(
            (
                "one scheme for all",
                f"{rival['name']}: KL {rival['kl']:.4g} in {format_bytes(rival['bytes'])}, same rows",
            )
        )
    lines += [
        (f"beside it, {one['name']}", f"KL {one['kl']:.4g} in {format_bytes(one['bytes'])}")
        for one in record.get("beside", ())
    ]
    return lines


def channel_words(pruning: Mapping[str, Any]) -> str:
    """Which layers lose channels, and what whole layers lose in as many bytes."""
    whole, pruned = pruning["whole_model"], pruning["pruned"]
    fewer = [one for one in pruning["channels"] if one["kept"] < one["units"]]
    if fewer:
        counts = ", ".join(f"{one['kept']} of {one['units']}" for one in fewer)
        layers = f"{counted(len(fewer), 'layer')} {'keeps' if len(fewer) == 1 else 'keep'} {counts}"
        return (
            f"{layers}; once rounded, KL {pruned['kl']:.4g} where whole layers have {whole['kl']:.4g} in "
            f"{format_bytes(whole['bytes'])}, on the rows that choices were judged on"
        )
    if pruned is None:
        return "none goes: fewer bits lose less everywhere"
    return (
        f"none goes: once rounded, KL {whole['kl']:.4g}, and {pruned['kl']:.4g} without some, which is not less with "
        "95 % confidence on the rows that choices were judged on"
    )


def search_figures(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What the page says first: whether what was asked for was met, the size, the loss, and one scheme beside it."""
    whole, asked = record["whole"], record["asked"]
    if record["looks"]:
        kept = [look for look in record["looks"] if look["kept"] and look["bytes"] == record["bytes"]]
        most, bound = asked["max_loss"], min(look["bound"] for look in kept)
        form = ".3g" if asked["metric"] == "kl" else ".2%"
        words = f"{asked['metric']} loss of at most {bound:{form}} with 95 % confidence; {most:{form}} was allowed"
    else:
        words = f"{record['bytes']:,} bytes of weight files, no more than was asked for"
    figures = [
        ("pass", words, "good"),
        (
            format_bytes(record["bytes"]),
            f"of {format_bytes(record['bytes_of_source'])}, {record['bits_per_weight']:.4g} bits a weight",
            "",
        ),
        (f"{whole['kl']:.3g}", f"± {whole['half_width']:.2g} nats: KL per token on held-out rows", ""),
    ]
    if "grown" in whole:
        figures.append((f"{whole['grown']:+.2%}", "perplexity on held-out rows", ""))
    if rival := record.get("rival"):
        words = f"of the KL of {rival['name']} for all layers, the best in as many bytes, on the same held-out rows"
        better = whole["kl"] < rival["kl"]
        figures.append((f"{whole['kl'] / rival['kl']:.2f} ×", words, "good" if better else "bad"))
    return figures


def short_names(names: Sequence[str]) -> list[str]:
    """Names of layers without the path that all numbered ones begin with; joined layers share theirs."""
    numbered = [name.split(".") for name in names if any(part.isdigit() for part in name.split("."))]
    same = takewhile(lambda parts: len(set(parts)) == 1 and not parts[0].isdigit(), zip(*numbered, strict=False))
    start = "".join(f"{parts[0]}." for parts in same)
    found = []
    for name in names:
        first, *others = (part.removeprefix(start) for part in name.split(" + "))
        found.append("+".join([first, *(other.rpartition(".")[2] for other in others)]))
    return found


def scheme_order(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """All candidates, the smallest first: in the order of the bytes they take of the layers that have them."""
    shares: dict[str, list[float]] = {}
    for group in groups:
        for one in group["candidates"]:
            shares.setdefault(one["scheme"], []).append(one["bytes"] / group["weights"])
    return sorted(shares, key=lambda scheme: fmean(shares[scheme]))


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
                "weights": f"{group['weights']:,}",
                "became": group["chosen"],
                "loss": f"{candidates[place]['loss']:.1e}",
                "why": _why(candidates[place]),
                "smaller": smaller,
                "larger": larger,
            }
        )
    return rows


def _why(chosen: Mapping[str, Any]) -> str:
    """What a candidate costs, and how that is known."""
    how = "measured" if chosen["measured"] is not None else "by gradients"
    return f"{chosen['loss']:.1e}, {how}; {format_bytes(chosen['bytes'])}"


def unbeaten(group: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The candidates of a group that lose less than all smaller ones, and the chosen one; the smallest first."""
    found: list[Mapping[str, Any]] = []
    least = float("inf")
    for one in group["candidates"]:
        if one["loss"] < least or one["scheme"] == group["chosen"]:
            found.append(one)
            least = min(least, one["loss"])
    return found
