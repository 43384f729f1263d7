"""The table of docs/kernels.md about Hadamard transforms of inputs, from benchmarks/results."""

from __future__ import annotations

from typing import Any

from tools.docs.results import read, table


def transforms() -> str:
    """A row for each shape, number of tokens and set of instructions."""
    rows = []
    for shape, measured in read("hadamard")["shapes"].items():
        found: dict[tuple[int, str], dict[str, Any]] = {}
        for row in measured:
            found.setdefault((row["tokens"], row["isa"]), {})[row["beside"]] = row
        for (tokens, isa), beside in found.items():
            layer = beside["the layer"]
            figures = [f"{layer['ms'] * 1000:.0f}", f"{100 * layer['times_as_long']:.1f} %"]
            ratios = [f"{beside['a copy']['times_as_long']:.1f}", f"{1 / beside['plain torch']['times_as_long']:.0f}"]
            rows.append([f"{shape}, {layer['size']}", str(tokens), isa, *figures, *ratios])
    head = [
        "layer, n",
        "tokens",
        "instructions",
        "µs",
        "of the layer's time",
        "times a copy",
        "times as fast as plain torch",
    ]
    return table(head, rows)
