"""Small drawings inside table rows: marks at a height or dark cells for each layer, bars, a loss and its interval.

All are stretched to the width of their cell, so they hold no text: labels stand in the table, and every mark has a
tooltip and the drawing a description for those who do not see it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 100.0, 40.0
_THICKNESS = 2.0


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A value with a name.

    Args:
        label: what the tooltip says.
        value: its height; infinite values stand at the edge, NaN is not drawn.
    """

    label: str
    value: float


def height_of(value: float, low: float, high: float) -> float:
    """Return the distance from the top, in units of the drawing, of ``value`` on a scale from ``low`` to ``high``."""
    if high <= low:
        return HEIGHT / 2
    share = min(1.0, max(0.0, (value - low) / (high - low)))
    return round((1.0 - share) * HEIGHT, 3)


def marks(values: Sequence[Mark], low: float, high: float, description: str, line: float | None = None) -> Markup:
    """Draw a short stroke for each value, in order from left to right, at its height between ``low`` and ``high``.

    Args:
        values: the values, in the order of the layers.
        low: the value at the bottom.
        high: the value at the top.
        description: what the drawing says, for those who do not see it.
        line: a value at which a dashed line is drawn.
    """
    step = WIDTH / max(1, len(values))
    parts = []
    if line is not None:
        y = height_of(line, low, high)
        parts.append(Markup('<line class="limit" x1="0" x2="{}" y1="{}" y2="{}"/>').format(WIDTH, y, y))
    for number, mark in enumerate(values):
        if math.isnan(mark.value):
            continue
        y = min(HEIGHT - _THICKNESS, max(0.0, height_of(mark.value, low, high) - _THICKNESS / 2))
        x, width = round(number * step, 3), round(step * 0.9, 3)
        parts.append(
            Markup(
                '<g><title>{}</title><rect class="hit" x="{}" y="0" width="{}" height="{}"/>'
                '<rect class="mark" x="{}" y="{}" width="{}" height="{}"/></g>'
            ).format(mark.label, x, width, HEIGHT, x, round(y, 3), width, _THICKNESS)
        )
    return _drawing(Markup("").join(parts), HEIGHT, "marks", description)


def cells(values: Sequence[Mark], low: float, high: float, description: str) -> Markup:
    """Draw a cell for each value, in order from left to right, the darker the larger, on a logarithmic scale.

    Args:
        values: the values, 0 or more; what is not above ``low`` is the lightest.
        low: the value of the lightest cell, above 0.
        high: the value of the darkest.
        description: what the drawing says, for those who do not see it.
    """
    step = WIDTH / max(1, len(values))
    parts = [
        Markup(
            '<g><title>{}</title><rect class="cell" x="{}" y="0" width="{}" height="20" fill-opacity="{}"/></g>'
        ).format(mark.label, round(number * step, 3), round(step * 0.96, 3), _darkness(mark.value, low, high))
        for number, mark in enumerate(values)
    ]
    return _drawing(Markup("").join(parts), 20, "cells", description)


def lines(series: Sequence[tuple[str, Sequence[float]]], high: float, description: str) -> Markup:
    """Draw a line for each series of values, from left to right, between 0 at the bottom and ``high`` at the top.

    Args:
        series: the class of each line and its values; a single value is drawn across.
        high: the value at the top.
        description: what the drawing says, for those who do not see it.
    """
    parts = []
    for kind, values in series:
        drawn = list(values) * 2 if len(values) == 1 else values
        step = WIDTH / max(1, len(drawn) - 1)
        points = " ".join(
            f"{number * step:.3f},{height_of(value, 0.0, high) if high > 0 else HEIGHT}"
            for number, value in enumerate(drawn)
        )
        parts.append(Markup('<polyline class="{}" points="{}"/>').format(kind, points))
    return _drawing(Markup("").join(parts), HEIGHT, "lines", description)


def _darkness(value: float, low: float, high: float) -> float:
    """From 0.06 to 1; 1 for what is no number."""
    if not value <= high:
        return 1.0
    share = math.log(value / low) / math.log(high / low) if value > low and high > low else 0.0
    return round(0.06 + 0.94 * share, 3)


def bars(before: float, after: float, largest: float, description: str) -> Markup:
    """Draw ``before`` as a light bar and ``after`` as a full one over it; ``largest`` fills the width."""
    scale = WIDTH / largest if largest > 0 else 0.0
    body = Markup(
        '<rect class="before" x="0" y="0" width="{}" height="10"/>'
        '<rect class="after" x="0" y="2" width="{}" height="6"/>'
    ).format(round(before * scale, 3), round(after * scale, 3))
    return _drawing(body, 10, "bars", description)


def interval(low: float, value: float, high: float, limit: float, reach: float, description: str) -> Markup:
    """Draw a loss with its interval on a scale from ``-reach`` (left, better) to ``reach``, beside 0 and a limit.

    Args:
        low: the lower end of the interval.
        value: the loss.
        high: the upper end.
        limit: what is allowed, a dashed line.
        reach: the value at the right edge.
        description: what the drawing says, for those who do not see it.
    """

    def place(number: float) -> float:
        return round(WIDTH * min(1.0, max(0.0, 0.5 + number / (2 * reach))) if reach > 0 else WIDTH / 2, 3)

    width = round(max(0.3, place(high) - place(low)), 3)
    body = Markup(
        '<line class="axis" x1="{0}" x2="{0}" y1="0" y2="20"/><line class="limit" x1="{1}" x2="{1}" y1="0" y2="20"/>'
        '<rect class="mark" x="{2}" y="9" width="{3}" height="2"/>'
        '<rect class="mark" x="{4}" y="4" width="1" height="12"/>'
    ).format(place(0.0), place(limit), place(low), width, place(value) - 0.5)
    return _drawing(body, 20, "interval", description)


def _drawing(body: Markup, height: float, kind: str, description: str) -> Markup:
    box = f"0 0 {WIDTH:g} {height:g}"
    return Markup('<svg class="{}" viewBox="{}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>').format(
        kind, box, escape(description), body
    )
