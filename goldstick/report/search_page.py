"""The page of a search: the Pareto front, what every layer got, a slider over sizes; one file that loads nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from markupsafe import Markup

from goldstick.core.json_files import write_atomically
from goldstick.errors import UsageError
from goldstick.report.page import render
from goldstick.report.words import format_bytes

#: Beside ``report.html`` where a recipe was found by a search.
SEARCH_PAGE = "search.html"


def require_plotly() -> None:
    """Refuse to begin what could not be drawn in the end.

    Raises:
        UsageError: The package ``plotly`` is not installed.
    """
    if find_spec("plotly") is None:
        raise UsageError("The page of a search needs the package 'plotly': pip install 'goldstick[search]'.")


def write_search_page(directory: Path, record: Mapping[str, Any]) -> Path | None:
    """Write the page of the search that found a checkpoint's recipe; none where no search did, or plotly is absent."""
    if not record or find_spec("plotly") is None:
        return None
    path = directory / SEARCH_PAGE
    write_atomically(path, render_search(record).encode())
    return path


def render_search(record: Mapping[str, Any]) -> str:
    """Return the page of what a search found; Plotly is in it, so that it opens from disk.

    Raises:
        UsageError: The package ``plotly`` is not installed.
    """
    require_plotly()
    from plotly.offline import get_plotlyjs

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
