"""``report.html``: a report as one page that opens from disk and loads nothing.

Everything is escaped by the template engine, and a content security policy keeps a page from loading or running
anything but its own styles (and, on the page of a comparison, its own script, named by its hash).
"""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from goldstick.core.json_files import check_writable, parse_json, read_text, write_atomically
from goldstick.errors import DataError
from goldstick.report.accuracy_view import evaluation_view
from goldstick.report.divergence_view import divergence_words
from goldstick.report.file_names import FILE_NAME, PAGE_NAME
from goldstick.report.report import Report
from goldstick.report.view import report_view

_GENERATOR = b'<meta name="generator" content="goldstick">'


def render_report(text: str) -> str:
    """Return the page of a report.

    Args:
        text: the contents of ``report.json``, of a compression or of an evaluation.

    Raises DataError where it is neither.
    """
    data = parse_json(text, "the report")
    digest = hashlib.sha256(text.encode()).hexdigest()
    try:
        if isinstance(data, dict) and isinstance(data.get("tasks"), dict) and "report_version" not in data:
            return render(
                "evaluation.html",
                **evaluation_view(data),
                divergence=list(divergence_words(data)),
                digest=digest,
            )
        return render("report.html", **report_view(Report.from_json(text)), digest=digest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"the report lacks a field or has a wrong one ({error})") from error


def write_page(directory: Path | str, *, replace: bool = True) -> Path:
    """Render ``report.json`` in ``directory`` as ``report.html`` beside it and return its path.

    Raises DataError where there is no report or it is not one, OutputError where the page cannot be written.
    """
    path = Path(directory) / FILE_NAME
    text = read_text(path)
    try:
        page = render_report(text)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    write_atomically(path.with_name(PAGE_NAME), page.encode(), replace=replace)
    return path.with_name(PAGE_NAME)


def check_page(directory: Path, overwrite: bool) -> None:
    """Refuse to render a page over one that goldstick did not render.

    Raises:
        OutputError: There is such a file, and ``overwrite`` is false; or it can be replaced by no means.
    """
    path = directory / PAGE_NAME
    check_writable(path, overwrite=overwrite or _is_own_page(path))


def _is_own_page(path: Path) -> bool:
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as file:
            return _GENERATOR in file.read(2000)
    except OSError:
        return False


def render(template: str, **content: Any) -> str:
    """Return a template of this package filled with ``content``; all text in it is escaped."""
    environment = _environment()
    script, _, _ = environment.loader.get_source(environment, "tree.js")  # type: ignore[union-attr]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template(template).render(script_hash=f"sha256-{digest}", **content)
    return page.encode(errors="backslashreplace").decode()  # names of files that are not UTF-8


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
