"""The page of a sensitivity: a heat map of layers and widths, and all figures, in one file that loads nothing."""

from __future__ import annotations

from goldstick.report.heat_map import heat_map
from goldstick.report.page import render
from goldstick.report.sensitivity import Sensitivity
from goldstick.report.words import format_shape


def render_sensitivity(found: Sensitivity) -> str:
    """Return the page."""
    return render(
        "sensitivity.html",
        title=f"{found.model}: sensitivity of its layers",
        heat=heat_map(found),
        layers=[
            (layer.name, format_shape(layer.shape), [f"{layer.kl[bits]:.2e}" for bits in found.widths])
            for layer in found.layers
        ],
    )
