"""Ask a browser in an environment of its own what pages look like, and judge it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]
#: Where `make browser` puts it.
HOME = ROOT / "build" / "browser"
#: Widths that pages are looked at.
WIDTHS = {"phone": 390, "desktop": 1280}


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A page, and how to look at it.

    Attributes:
        page: An HTML file.
        width: Of the window, in pixels.
        height: Of the window, in pixels.
        scheme: What the reader prefers, ``light`` or ``dark``.
        scale: Pixels of the screen for each of the window.
        picture: Where to keep a picture, ``.png`` or ``.webp``; nowhere where empty.
        whole: Whether the picture shows the page to its end.
        left_out: A CSS selector of what the picture leaves out.
        paper: Where to keep what a printer would be given, a PDF file; nothing is printed where empty.
        query: What to type into the search of the site; nothing where empty.
    """

    page: Path
    width: int = 1280
    height: int = 900
    scheme: Literal["light", "dark"] = "light"
    scale: float = 1.0
    picture: str = ""
    whole: bool = False
    left_out: str = ""
    paper: str = ""
    query: str = ""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What a visit found.

    Attributes:
        said: What came on the console, with errors of scripts and files that are not there.
        fetched: Addresses beyond files that were asked for.
        screen: Width, charts and contrasts, as ``measure.js`` gives them.
        slider: What the slider of a search shows before, at its smallest size, and back again; or None.
        paper: As ``screen``, on paper; or None.
        answers: The titles that the search of the site found; or None.
    """

    said: list[str]
    fetched: list[str]
    screen: Mapping[str, Any]
    slider: Mapping[str, Any] | None
    paper: Mapping[str, Any] | None
    answers: list[str] | None


def program() -> Path | None:
    """The browser: what the variable ``GOLDSTICK_BROWSER`` names, or the one of `make browser`; None without."""
    python, named = HOME / "environment" / "bin" / "python", os.environ.get("GOLDSTICK_BROWSER")
    found = Path(named) if named else HOME / "chromium" / "chromium"
    return found if found.is_file() and python.is_file() else None


def look_at(visits: Sequence[Visit]) -> list[Sight]:
    """Open pages one after the other.

    Raises:
        RuntimeError: There is no browser, or it broke off, with what it said.
    """
    browser = program()
    if browser is None:
        raise RuntimeError("there is no browser here: make browser")
    own = HOME / "chromium"
    libraries = [os.environ.get("LD_LIBRARY_PATH", ""), str(own / "lib")]  # the system's count before those it brings
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, libraries))}
    asked = {"program": str(browser), "visits": [asdict(visit) | {"page": str(visit.page)} for visit in visits]}
    ended = subprocess.run(
        [HOME / "environment" / "bin" / "python", Path(__file__).parent / "look.py"],
        input=json.dumps(asked), capture_output=True, text=True, env=environment, timeout=600, check=False,
    )  # fmt: skip
    if ended.returncode:
        raise RuntimeError(f"the browser broke off: {ended.stderr.strip()[-2000:]}")
    return [Sight(**one) for one in json.loads(ended.stdout)["seen"]]


def _faults(seen: Mapping[str, Any], contrast: float, paper: bool) -> Iterator[str]:
    if seen["wide"] > seen["width"]:
        yield f"is {seen['wide']} pixels wide in a window of {seen['width']}"
    if not seen["heading"]:
        yield "has no heading"
    yield from (f"lacks the picture {address}" for address in seen["broken"])
    for chart in seen["charts"]:
        if chart["width"] < 1 or chart["height"] < 1 or not chart["marks"]:
            yield f"the chart {chart['name']} is not drawn"
        elif (chart["plot"] and chart["width"] > seen["width"]) if paper else not 0.9 < chart["share"] < 1.01:
            yield f"the chart {chart['name']} is {chart['width']:.0f} pixels wide, {chart['share']:.0%} of its room"
    for text in seen["pale"]:
        if text["contrast"] < contrast:
            yield f"{text['text']!r} has a contrast of {text['contrast']:.1f}"


def complaints(visit: Visit, sight: Sight, *, contrast: float = 4.0) -> Iterator[str]:
    """What is wrong with a page, in words.

    Args:
        visit: How it was looked at.
        sight: What was seen.
        contrast: Of text with what is behind it, at least (WCAG asks for 4.5 of small text, 3 of large).
    """
    yield from (f"says on the console: {words}" for words in sight.said)
    yield from (f"asks for {address}" for address in sight.fetched)
    for where, seen in (("", sight.screen), ("on paper: ", sight.paper)):
        yield from () if seen is None else (f"{where}{words}" for words in _faults(seen, contrast, bool(where)))
    dark = sight.screen["light"] < 0.2
    if dark != (visit.scheme == "dark"):
        yield f"is {'dark' if dark else 'light'} for a reader who prefers {visit.scheme}"
    if sight.paper is not None and sight.paper["light"] < 0.9:
        yield "is dark on paper"
    if sight.slider is not None:
        before, moved, after = (sight.slider[when] for when in ("before", "moved", "after"))
        if (
            moved["words"] == before["words"]
            or moved["cells"] == before["cells"]
            or moved["command"] == before["command"]
        ):
            yield "its slider changes nothing"
        if after != before:
            yield "does not come back to what was found"
    if sight.answers is not None and not sight.answers:
        yield f"its search finds nothing about {visit.query!r}"
