"""A table of schemes and tasks, measured a cell at a time: what tasks.py and encoder.py share.

Checkpoints and the results of evaluations stay in a build folder, so that a run that was stopped goes on where it was,
and the items of single questions are there to be paired. The results file holds figures, intervals and verdicts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from goldstick.api import evaluate, quantize
from goldstick.core.json_files import dump_json, write_atomically
from goldstick.evaluation.compare import ComparisonRow, compare
from goldstick.evaluation.evaluate import Evaluation
from goldstick.hf.names import quiet_libraries
from goldstick.jobs.save.records import environment
from goldstick.planning import RecipeLike
from goldstick.recipes.recipe import Recipe
from goldstick.report.words import verdict

FLOAT = "float"


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A compressed model.

    Attributes:
        name: What the table calls it.
        recipe: How it is made; nothing for the float model.
    """

    name: str
    recipe: RecipeLike = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A task on some data.

    Attributes:
        name: What the table calls it.
        task: The task.
        data: Where its data lie.
        limit: Items at most.
    """

    name: str
    task: str
    data: Path
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Schemes of one model, tasks, and where everything is kept.

    Attributes:
        model: The float model.
        schemes: The float model first.
        measurements: The tasks.
        calibration: Where calibration data lie, for recipes that look at data.
        build: A folder for checkpoints and results of evaluations.
        results: The results file.
    """

    model: Path
    schemes: Sequence[Scheme]
    measurements: Sequence[Measurement]
    calibration: Path
    build: Path
    results: Path

    def run(self, only: str = "*", about: Mapping[str, Any] | None = None) -> None:
        """Measure the cells ``SCHEME/TASK`` that match a pattern and are not in the results; write after each."""
        for measurement in self.measurements:
            for scheme in self.schemes:
                cell = f"{scheme.name}/{measurement.name}"
                found = read_results(self.results)
                if not fnmatch(cell, only) or _is_current(found.get("cells", {}).get(cell), measurement):
                    continue
                start = time.perf_counter()
                figures = self.measure(scheme, measurement)
                figures["seconds"] = round(time.perf_counter() - start, 1)
                print(cell, json.dumps(figures["metrics"], ensure_ascii=False), f"{figures['seconds']} s", flush=True)
                found = read_results(self.results)  # again, for another run may have added to it
                cells = found.get("cells", {}) | {cell: figures}
                content = {**found, **(about or {}), "environment": environment(), "cells": self._in_order(cells)}
                write_atomically(self.results, dump_json(content).encode())

    def measure(self, scheme: Scheme, measurement: Measurement) -> dict[str, Any]:
        """One cell: each metric with its interval, and what the same items say of its difference to float."""
        own = self._evaluate(scheme, measurement)
        base = own if scheme.name == FLOAT else self._evaluate(self.schemes[0], measurement)
        result = own.results[measurement.task]
        rows = {row.metric: row for row in compare(own, base)}
        return {
            "task": measurement.task,
            "protocol": result.protocol,
            "n": result.n,
            "limit": measurement.limit,
            "metrics": {
                metric: _figures(value, result.details["interval_95"][metric], rows[metric], scheme.name == FLOAT)
                for metric, value in result.metrics.items()
            },
        }

    def checkpoint(self, scheme: Scheme) -> Path:
        """The compressed model, made if it is not there."""
        if not scheme.recipe:
            return self.model
        directory = self.build / "checkpoints" / scheme.name.replace(" ", "-")
        if not directory.exists():
            directory.parent.mkdir(parents=True, exist_ok=True)
            quantize(self.model, scheme.recipe, output=directory, evaluate=(), data_dir=self.calibration)
        return directory

    def _evaluate(self, scheme: Scheme, measurement: Measurement) -> Evaluation:
        return evaluate(
            self.checkpoint(scheme),
            [measurement.task],
            data_dir=measurement.data,
            limit=measurement.limit,
            cache=self.build / "cache",
        )

    def _in_order(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        names = [f"{scheme.name}/{one.name}" for one in self.measurements for scheme in self.schemes]
        return {name: cells[name] for name in names if name in cells} | dict(cells)  # others stand behind


def schemes_to_measure(description: str | None, schemes: Iterable[str]) -> list[str]:
    """Those of a benchmark's schemes that its command line asks for, none to report alone; one thread from here on."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="a pattern of the schemes to measure")
    parser.add_argument("--report", action="store_true", help="write the table from what is there")
    arguments = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    return [] if arguments.report else [scheme for scheme in schemes if fnmatch(scheme, arguments.only)]


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """A recipe whose random tokens are those of a seed."""
    return recipe.model_copy(update={"calibration": recipe.calibration.model_copy(update={"seed": seed})})


def read_results(path: Path) -> dict[str, Any]:
    """The results file, empty where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _is_current(cell: Mapping[str, Any] | None, measurement: Measurement) -> bool:
    return cell is not None and (cell["task"], cell["limit"]) == (measurement.task, measurement.limit)


def _figures(value: float, interval: Any, row: ComparisonRow, is_float: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {"value": value, "interval_95": interval}
    if is_float:
        return figures
    return figures | {
        "difference": row.difference,
        "difference_interval_95": None if row.interval is None else list(row.interval),
        "p": None if row.paired is None else row.paired.p_value,
        "items_changed": None if row.paired is None else row.paired.changed,
        "verdict": verdict(row),
    }


def markdown(content: Mapping[str, Any], schemes: Sequence[str], rows: Sequence[tuple[str, str]]) -> str:
    """Tasks down, schemes across: a figure for float, for the others the figure and the verdict.

    Args:
        content: what the results file holds.
        schemes: the names of the columns.
        rows: measurement and metric of each row.
    """
    lines = [_line("task", *schemes), "|---" * (len(schemes) + 1) + "|"]
    cells = content.get("cells", {})
    for task, metric in rows:
        found = {scheme: cells[f"{scheme}/{task}"] for scheme in schemes if f"{scheme}/{task}" in cells}
        items = {cell["n"] for cell in found.values()}
        title = f"{task}: {metric.replace('_', ' ')}" + "".join(f" ({n:,})" for n in sorted(items))
        shown = [_shown(found[scheme]["metrics"][metric]) if scheme in found else "–" for scheme in schemes]
        lines.append(_line(title, *shown))
    return "\n".join(lines)


def write_behind(document: Path, mark: str, text: str) -> None:
    """Put ``text`` into a document between a mark and the next heading or the document's end."""
    content = document.read_text(encoding="utf-8")
    start = content.index(mark) + len(mark)
    end = content.find("\n## ", start)
    rest = "" if end < 0 else content[end:]
    document.write_text(f"{content[:start]}\n{text}\n{rest}", encoding="utf-8")


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(figures: Mapping[str, Any]) -> str:
    value = f"{figures['value']:.4g}"
    if "verdict" in figures:
        return f"{value}: {figures['verdict']}"
    low, high = figures["interval_95"]
    return f"{value} ({low:.4g} … {high:.4g})"
