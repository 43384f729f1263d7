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
from goldstick.report.file_names import SEARCH_PAGE
from goldstick.report.page import render
from goldstick.report.search_words import channel_words, scheme_order, search_figures, searched_rows, short_names

#: Beside ``report.html`` where a recipe was found by a search.


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

    record = {"beside": [], "rival": None, "pruning": None, **record}  # of records older than these
    shown = {
        **record,
        "labels": short_names([group["name"] for group in record["groups"]]),
        "schemes": scheme_order(record["groups"]),
    }
    return render(
        "search.html",
        title=f"{record['model']}: what each layer becomes",
        figures=search_figures(record),
        record=record,
        rows=searched_rows(record),
        channels=channel_words(record["pruning"]) if record["pruning"] else "",
        measured=any(one["measured"] and one["second"] for group in record["groups"] for one in group["candidates"]),
        tasks=any((point.get("grown") or 0) > 0 for point in record["front"]),
        data=Markup(json.dumps(shown).replace("<", "\\u003c")),  # no end of a script in it
        plotly=Markup(get_plotlyjs()),
    )
