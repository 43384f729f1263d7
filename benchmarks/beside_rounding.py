"""Is a calibrated recipe ever worse than rounding to nearest? ``python -m benchmarks.beside_rounding [--only 'w4*']``.

The reference model in float32, with 4 bits and more: rounded to nearest (``rtn-SCHEME``), and by calibrated recipes of
words with ``--effort default``, calibrated on 128 windows of 256 tokens of its own text, three draws of them. Tasks are
those of the second table of docs/tasks.md. An item's figure is the mean over the draws; the interval is of items drawn
again, of the difference from rounding of the same items. One thread.

Writes ``benchmarks/results/beside-rounding.json`` cell by cell, and a table of ``docs/tasks.md``. What is there is not
measured again; ``--report`` measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import goldstick
from benchmarks.cells import Measurement, schemes_to_measure, write_behind
from benchmarks.effort import SUBJECT, drawn, recipe_of
from benchmarks.tasks import DOCUMENT, METRICS, ROOT, format_table
from goldstick.evaluation.evaluate import evaluate
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import Items
from goldstick.evaluation.paired import compare_items
from goldstick.jobs.save.records import environment
from goldstick.recipes.needs_data import needs_data

RESULTS = ROOT / "benchmarks" / "results" / "beside-rounding.json"
MARK = "<!-- written by benchmarks/beside_rounding.py -->\n"
#: Calibrated recipes of words, by scheme.
RECIPES = {
    "w4a16-g128": ("gptq", "awq"),
    "w4a16-g32": ("gptq", "awq"),
    "w4a8-dynamic-g32": ("gptq",),
    "mxfp4a16": ("gptq",),
    "nvfp4a16": ("gptq",),
    "nvfp4": ("gptq",),
    "mxfp4": ("gptq",),
    "q4_k_m": ("gptq",),
}
SEEDS = (0, 1, 2)
_ROUNDING = "rtn"


def main() -> None:
    """Measure, write."""
    if schemes := schemes_to_measure(__doc__, RECIPES):
        measure(schemes)
    write_behind(DOCUMENT, MARK, table(read()))


def measure(schemes: Sequence[str]) -> None:
    """What is missing of some schemes, kept model by model."""
    model = AutoModelForCausalLM.from_pretrained(SUBJECT.directory, dtype=torch.float32).eval()
    for scheme in schemes:
        for method in (_ROUNDING, *RECIPES[scheme]):
            for seed in SEEDS[:1] if method == _ROUNDING else SEEDS:
                name = f"{method}-{scheme}"
                if str(seed) in read().get(name, {}):
                    continue
                recipe = recipe_of(name, "default", seed)
                data = drawn(model, seed)
                made = goldstick.apply(model, recipe, data=data.batches() if needs_data(recipe.stages) else None)
                found = {"tasks": measured(made.model), "calibration": data.fingerprint, "versions": environment()}
                results = read()
                results.setdefault(name, {})[str(seed)] = found
                RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
                print(
                    name,
                    seed,
                    {task: round(_items(one).metric(), 3) for task, one in found["tasks"].items()},
                    flush=True,
                )


def measured(model: Any) -> dict[str, Any]:
    """The items of every task's metric."""
    subject = LanguageModel.from_directory(model, SUBJECT.directory)
    found = {}
    for one in format_table().measurements:
        result = evaluate(subject, [one.task], data_dir=one.data, limit=one.limit).results[one.task]
        items = result.details["items"][METRICS[one.task]]
        found[one.name] = {**items, "values": [round(value, 4) for value in items["values"]]}
    return found


def read() -> dict[str, Any]:
    """The results: recipe → seed → what was found."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    return found


def over_seeds(found: Mapping[str, Any], task: str) -> Items:
    """Each item's mean over the draws of calibration data."""
    every = [_items(one["tasks"][task]) for one in found.values()]
    return Items(
        values=np.mean([one.values for one in every], axis=0).tolist(), weights=every[0].weights,
        exponential=every[0].exponential, factor=every[0].factor,
    )  # fmt: skip


def table(results: Mapping[str, Any]) -> str:
    """Tasks down, recipes across: what rounding has, what the recipe has, and what the items say of the difference."""
    pairs = [
        (f"{method}-{scheme}", f"{_ROUNDING}-{scheme}")
        for scheme, methods in RECIPES.items()
        for method in methods
        if f"{method}-{scheme}" in results and f"{_ROUNDING}-{scheme}" in results
    ]
    lines = [f"| task | {' | '.join(f'`{name}`' for name, _ in pairs)} |", "|---" * (len(pairs) + 1) + "|"]
    for one in format_table().measurements:
        cells = [cell(results[name], results[rounded], one) for name, rounded in pairs]
        lines.append(f"| {one.name}: {METRICS[one.task].replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(found: Mapping[str, Any], rounded: Mapping[str, Any], one: Measurement) -> str:
    """Rounding's figure → the recipe's: the interval of the difference, and its verdict."""
    after, before = over_seeds(found, one.name), over_seeds(rounded, one.name)
    figures = f"{before.metric():.4g} → {after.metric():.4g}"
    paired = compare_items(after, before)
    if not paired.changed:
        return f"{figures}: equal on each item"
    interval, unit = (paired.relative_interval, 100) if before.exponential else (paired.interval, 1)
    assert interval is not None
    low, high = (unit * bound for bound in interval)
    gain = -1 if before.exponential else 1
    word = "no difference shown" if low <= 0 <= high else "better" if gain * low > 0 else "**worse**"
    return f"{figures}: {low:+.2f} … {high:+.2f}{' %' if before.exponential else ''}, {word}"


def _items(one: Mapping[str, Any]) -> Items:
    return Items.from_dict(one)


if __name__ == "__main__":
    main()
