"""What was cut out of a network, as a page shows it: the scores of every layer's channels, and which went."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from goldstick.report.svg import Mark, marks


def pruning_view(pruning: Mapping[str, Any]) -> dict[str, Any]:
    """What the template is given for a stage that cut channels, in plain data and drawings."""
    return {
        "stage": pruning["stage"],
        "rows": [_row(layer) for layer in pruning["layers"]],
        "refused": list(pruning["refused"].items()),
    }


def _row(layer: Mapping[str, Any]) -> dict[str, Any]:
    scores = [float(score) for score in layer["scores"]]
    gone = set(layer["dropped"])
    order = sorted(range(len(scores)), key=lambda unit: scores[unit])
    what = "head" if layer["heads"] else "channel"
    drawn = [
        Mark(label=f"{what} {unit}: {scores[unit]:.4g}{', cut' if unit in gone else ''}", value=scores[unit])
        for unit in order
    ]
    finite = [score for score in scores if math.isfinite(score)] or [0.0]
    low, high = min(finite), max(finite)
    line = min((scores[unit] for unit in order if unit not in gone), default=None)
    return {
        "name": layer["name"],
        "kept": f"{layer['kept']:,} of {layer['units']:,}{' heads' if layer['heads'] else ''}",
        "low": f"{low:.3g}",
        "high": f"{high:.3g}",
        "note": "zeros in the place of what is cut" if layer["scattered"] else "",
        "drawing": marks(drawn, low, high, f"{layer['name']}: {layer['kept']} of {layer['units']} kept", line=line),
    }
