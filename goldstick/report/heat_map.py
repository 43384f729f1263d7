"""The heat map of a sensitivity: a cell for each layer and choice, the darker the more rounding changes the output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from goldstick.errors import DataError
from goldstick.report.sensitivity import Choice, LayerSensitivity, Sensitivity, in_words
from goldstick.report.svg import Mark, cells


def heat_map(found: Sensitivity) -> dict[str, Any]:
    """What the template ``heat_map.html`` is given: a row for each kind of layer, a drawing for each choice."""
    figures = [value for layer in found.layers for value in layer.kl.values() if value > 0]
    low, high = (min(figures), max(figures)) if figures else (1e-9, 1.0)
    kinds: dict[str, list[LayerSensitivity]] = {}
    for layer in found.layers:
        kinds.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", layer.name), []).append(layer)
    return {
        "inputs": found.inputs,
        "tokens": f"{found.tokens:,}",
        "grid": _grid(found.grid) if any(isinstance(choice, int) for choice in found.widths) else "named schemes",
        "choices": [in_words(choice) for choice in found.widths],
        "of": "predictions" if found.measure == "kl" else "samples",
        "short": "KL" if found.measure == "kl" else "Squared error",
        "unit": found.unit,
        "figure": found.figure,
        "low": f"{low:.1e}",
        "high": f"{high:.1e}",
        "rows": [
            {
                "name": kind,
                "count": len(layers),
                "strips": [_strip(kind, layers, choice, low, high, found.unit) for choice in found.widths],
            }
            for kind, layers in kinds.items()
        ],
    }


def drawable(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The contents of a sensitivity file where a heat map can be drawn of them, else nothing.

    A recipe asks less of such a file than a drawing, and a report must not fail for it at the end of a run.
    """
    try:
        heat_map(Sensitivity.from_dict(data))
    except (DataError, KeyError, TypeError, ValueError):
        return {}
    return data


def _strip(kind: str, layers: list[LayerSensitivity], choice: Choice, low: float, high: float, unit: str) -> Any:
    values, words = [layer.kl[choice] for layer in layers], in_words(choice)
    marks = [
        Mark(label=f"{layer.name}, {words}: {layer.kl[choice]:.2e} {unit}", value=layer.kl[choice]) for layer in layers
    ]
    description = f"{kind}, {words}: {min(values):.2e} to {max(values):.2e} {unit}, in the order of the layers"
    return cells(marks, low, high, description)


def _grid(grid: Mapping[str, Any]) -> str:
    grain = f"groups of {grid['group_size']}" if grid["group_size"] else "one scale an output channel"
    symmetric = "symmetric" if grid["symmetric"] else "asymmetric"
    return f"{grain}, {symmetric}, ranges by {grid['range_search']}"
