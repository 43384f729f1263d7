"""The page of a sensitivity: a heat map of layers and widths, and all figures, in one file that loads nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from goldstick.report.page import render
from goldstick.report.sensitivity import LayerSensitivity, Sensitivity
from goldstick.report.svg import Mark, cells
from goldstick.report.words import format_shape


def render_sensitivity(found: Sensitivity) -> str:
    """Return the page."""
    figures = [value for layer in found.layers for value in layer.kl.values() if value > 0]
    low, high = (min(figures), max(figures)) if figures else (1e-9, 1.0)
    kinds: dict[str, list[LayerSensitivity]] = {}
    for layer in found.layers:
        kinds.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", layer.name), []).append(layer)
    return render(
        "sensitivity.html",
        title=f"{found.model}: sensitivity of its layers",
        inputs=found.inputs,
        tokens=f"{found.tokens:,}",
        grid=_grid(found.grid),
        widths=found.widths,
        low=f"{low:.1e}",
        high=f"{high:.1e}",
        rows=[
            {
                "name": kind,
                "count": len(layers),
                "strips": [_strip(kind, layers, bits, low, high) for bits in found.widths],
            }
            for kind, layers in kinds.items()
        ],
        layers=[
            (layer.name, format_shape(layer.shape), [f"{layer.kl[bits]:.2e}" for bits in found.widths])
            for layer in found.layers
        ],
    )


def _strip(kind: str, layers: list[LayerSensitivity], bits: int, low: float, high: float) -> Any:
    values = [layer.kl[bits] for layer in layers]
    marks = [
        Mark(label=f"{layer.name}, {bits} bits: {layer.kl[bits]:.2e} nats", value=layer.kl[bits]) for layer in layers
    ]
    description = f"{kind}, {bits} bits: {min(values):.2e} to {max(values):.2e} nats, in the order of the layers"
    return cells(marks, low, high, description)


def _grid(grid: Mapping[str, Any]) -> str:
    grain = f"groups of {grid['group_size']}" if grid["group_size"] else "one scale an output channel"
    symmetric = "symmetric" if grid["symmetric"] else "asymmetric"
    return f"{grain}, {symmetric}, ranges by {grid['range_search']}"
