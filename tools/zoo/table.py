"""What became of the zoo, in words and as docs/zoo.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tools.zoo.catalogue import TABLES
from tools.zoo.stages import Record

MARK = "<!-- written by tools/zoo -->"


def line(name: str, record: Record) -> str:
    """An architecture in one line."""
    failures = record.get("failures", {})
    said = "; ".join(f"{stage} {one['class']}: {one['error'][:160]}" for stage, one in failures.items())
    return f"{name}: {' '.join(record['passed']) or 'nothing'} ({record.get('seconds', 0)} s)" + (
        f" — {said}" if said else ""
    )


def summary(whole: dict[str, Any]) -> str:
    """How many there are of each failure class, and how many passed each stage."""
    records = whole["architectures"].values()
    passed = Counter(stage for record in records for stage in record["passed"])
    classes = Counter((stage, one["class"]) for record in records for stage, one in record.get("failures", {}).items())
    stages = ", ".join(f"{stage} {passed[stage]}" for stage in whole["stages"])
    failed = ", ".join(f"{stage} {name} {count}" for (stage, name), count in sorted(classes.items()))
    return f"{len(records)} architectures in {whole['seconds']} s; passed: {stages}; failed: {failed or 'none'}"


def write_table(whole: dict[str, Any], path: Path) -> None:
    """Write what lies below the mark of a page anew."""
    above = path.read_text(encoding="utf-8").split(MARK)[0]
    path.write_text(f"{above}{MARK}\n\n{_page(whole)}", encoding="utf-8")


def _page(whole: dict[str, Any]) -> str:
    records, stages = whole["architectures"], whole["stages"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(whole["versions"].items()))
    lines = [f"{len(records)} of {whole['of']} architectures, {versions}; {whole['seconds'] / 60:.0f} minutes.", ""]
    lines += [f"| kind | classes | built | {' | '.join(stages)} |", "|---|---|---|" + "---|" * len(stages)]
    for kind in [*TABLES, "all"]:
        ones = [record for record in records.values() if kind in ("all", record["kind"])]
        if ones:
            counts = [sum(stage in one["passed"] for one in ones) for stage in stages]
            built = sum(one["built"] for one in ones)
            lines.append(f"| {kind} | {len(ones)} | {built} | {' | '.join(map(str, counts))} |")
    for title, classes in _SECTIONS.items():
        rows = [
            f"| {name} | {stage} | {_cell(one['error'])} |"
            for name, record in sorted(records.items())
            for stage, one in record.get("failures", {}).items()
            if one["class"] in classes
        ]
        if rows:
            lines += ["", f"**{title}** ({len(rows)})", "", "| class | stage | why |", "|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


_SECTIONS = {
    "Faults": ("fault",),
    "Refused, with a remedy": ("refused",),
    "Built, but nothing says how to run it": ("no inputs",),
    "Not built": ("not built",),
}


def _cell(text: str) -> str:
    short = text if len(text) <= 200 else text[:199] + "…"
    return short.replace("|", "\\|").replace("<", "&lt;")
