"""The table of docs/rotation.md about transforms of inputs at run time, from benchmarks/results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.docs.results import read, table

#: What follows the scheme in a row's name → what follows the rotations in the results.
_SIZES = {"": "", ", blocks of 32": " in blocks of 32"}


def online() -> str:
    """A row for each model and scheme: mean KL without rotations, with R1 and R2, with R4, or float there."""
    rows = []
    for model, measured in read("online-rotation")["models"].items():
        found: Mapping[str, Any] = measured["rows"]
        schemes = dict.fromkeys(name.rpartition(" ")[2] for name in found if name != "float")
        for scheme in schemes:
            for title, size in _SIZES.items():
                before, after = (found.get(f"{turned}{size} {scheme}") for turned in ("R1, R2", "R1, R2, R4"))
                if before and after:
                    left = f"{after['kl'] / before['kl']:.2f}"
                    none, float_ = (
                        found.get(f"{one} {scheme}") if not size else None
                        for one in ("none", "R1, R2, inputs in float")
                    )
                    cells = [_cell(one) for one in (none, before, after, float_)]
                    rows.append([model, f"`{scheme}`{title}", *cells, left])
    return table(
        ["model", "scheme", "not rotated", "R1, R2", "R1, R2, R4", "R1, R2, those inputs in float", "left by R4"], rows
    )


def _cell(row: Mapping[str, Any] | None) -> str:
    """Thousandths of a nat, and their interval."""
    if row is None:
        return "–"
    low, high = (f"{1000 * end:.2f}" for end in row["kl_interval"])
    return f"{1000 * row['kl']:.2f} ({low}…{high})"
