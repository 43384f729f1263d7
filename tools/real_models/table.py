"""What the figures say, as the part of docs/real-models.md below its mark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.real_models.model import FLOAT

MARK = "<!-- written by tools/real_models -->"


def write_table(results: Mapping[str, Any], path: Path) -> None:
    """Write what lies below the mark of a page anew."""
    above = path.read_text(encoding="utf-8").split(MARK)[0]
    path.write_text(f"{above}{MARK}\n\n{page(results)}", encoding="utf-8")


def page(results: Mapping[str, Any]) -> str:
    """All models, a section each."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines = [f"With {versions}, on one thread of {results['processor']}."]
    for name, model in results["models"].items():
        lines += ["", *_section(name, model)]
    return "\n".join(lines) + "\n"


def _section(name: str, model: Mapping[str, Any]) -> Iterator[str]:
    packages = ", ".join(f"`{package}`" for package in model["packages"])
    variants: Mapping[str, Any] = model["variants"]
    metrics = list(variants[FLOAT]["metrics"])
    yield f"## {model['title']}"
    yield ""
    task = model["task"][0].upper() + model["task"][1:]
    yield f"{packages}; {model['licence']}. {task}. `python -m tools.real_models {name}` prints this."
    yield ""
    yield f"| | MB | {' | '.join(metrics)} | made in | memory | format |"
    yield f"|---|---|{'---|' * len(metrics)}---|---|---|"
    for variant, record in variants.items():
        figures = " | ".join(
            _figure(record["metrics"][metric], variants[FLOAT]["metrics"][metric], metric in model["errors"])
            for metric in metrics
        )
        made = "| | |"
        if variant != FLOAT:
            took = f"{record['seconds']:.0f} s ({record['processor seconds']:.0f} s)"
            made = f"| {took} | {record['peak bytes'] / 1e6:.0f} MB | {record['format']} |"
        yield f"| {variant} | {record['bytes'] / 1e6:.1f} | {figures} {made}"
    yield ""
    for variant, record in variants.items():
        if variant != FLOAT:
            yield f"- {variant}: `{record['command']}`"


def _figure(metric: Mapping[str, Any], by_float: Mapping[str, Any], errors: bool) -> str:
    """A value with its interval, then its difference to float on the same items, marked where that excludes 0.

    A metric that compares with the float model is a difference already.
    """
    digits = 4 if abs(metric["value"]) <= 1 and not errors else 2
    low, high = metric["interval"]
    said = f"{metric['value']:.{digits}f} ({low:.{digits}f} … {high:.{digits}f})"
    if metric.get("difference interval") is None or len(set(by_float["interval"])) == 1:
        return said
    lower, upper = metric["difference interval"]
    said += f"; {metric['difference']:+.{digits}f} ({lower:+.{digits}f} … {upper:+.{digits}f})"
    if lower > 0 or upper < 0:
        said += " ↓" if (lower > 0) == errors else " ↑"
    return said
