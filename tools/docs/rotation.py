"""The table of docs/rotation.md about transforms of inputs at run time, from benchmarks/results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.docs.results import read, table

#: What follows the scheme in a row's name → what follows the rotations in the results.
_SIZES = {"": "", ", blocks of 32": " in blocks of 32"}


def online() -> str:
    """A row for each model and scheme: mean KL without rotations, with R1 and R2, and with R4 as well."""
    rows = []
    for model, measured in read("online-rotation")["models"].items():
        found: Mapping[str, Any] = measured["rows"]
        schemes = dict.fromkeys(name.rpartition(" ")[2] for name in found if name != "float")
        for scheme in schemes:
            for title, size in _SIZES.items():
                before, after = (found.get(f"{turned}{size} {scheme}") for turned in ("R1, R2", "R1, R2, R4"))
                if before and after:
                    left = f"{after['kl'] / before['kl']:.2f}"
                    none = found.get(f"none {scheme}") if not size else None
                    rows.append([model, f"`{scheme}`{title}", _cell(none), _cell(before), _cell(after), left])
    return table(["model", "scheme", "not rotated", "R1, R2", "R1, R2, R4", "left by R4"], rows)


def _cell(row: Mapping[str, Any] | None) -> str:
    """Thousandths of a nat, and their interval."""
    if row is None:
        return "–"
    low, high = (f"{1000 * end:.2f}" for end in row["kl_interval"])
    return f"{1000 * row['kl']:.2f} ({low}…{high})"
