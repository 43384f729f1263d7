"""The table of docs/kernels.md about inputs of 8 bits, from benchmarks/results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.docs.results import read, table

#: Column → what the results call it.
_COLUMNS = {"16 bits": "16", "8 bits": "8", "8 bits by token": "by token"}


def costs() -> str:
    """A row for each model and scheme of weights: mean KL in thousandths of a nat, and its interval."""
    rows = [
        [model, f"`{scheme}`", *(_cell(row.get(name)) for name in _COLUMNS.values())]
        for model, found in read("input-bits").items()
        for scheme, row in found["rows"].items()
    ]
    return table(["model", "weights", *_COLUMNS], rows)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    low, high = (f"{1000 * end:.2f}" for end in row["kl_interval"])
    return f"{1000 * row['kl']:.2f} ({low}…{high})"
