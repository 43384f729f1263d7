"""The page of a search: the Pareto front, what every layer got, a slider over sizes; one file that loads nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from goldstick.errors import UsageError
from goldstick.report.page import render
from goldstick.report.words import format_bytes


def render_search(record: Mapping[str, Any]) -> str:
    """Return the page of what a search found; Plotly is in it, so that it opens from disk.

    Raises:
        UsageError: The package ``plotly`` is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UsageError("The page of a search needs the package 'plotly': pip install 'goldstick[search]'.") from error
    whole = record["whole"]
    return render(
        "search.html",
        title=f"{record['model']}: what each layer becomes",
        size=format_bytes(record["bytes"]),
        record=record,
        whole=f"{whole['kl']:.4g} ± {whole['half_width']:.2g}",
        groups=[(group["name"], group["weights"], group["chosen"], _why(group)) for group in record["groups"]],
        data=Markup(json.dumps(record).replace("<", "\\u003c")),  # no end of a script in it
        plotly=Markup(get_plotlyjs()),
    )


def _why(group: Mapping[str, Any]) -> str:
    """What a group's candidate costs, and how that is known."""
    chosen = next(one for one in group["candidates"] if one["scheme"] == group["chosen"])
    how = "measured" if chosen["measured"] is not None else "by gradients"
    return f"KL {chosen['loss']:.2e}, {how}; {format_bytes(chosen['bytes'])}"
