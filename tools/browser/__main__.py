"""``python -m tools.browser``: make goldstick's pages, open them in a browser, and say what is wrong with them."""

from __future__ import annotations

import shutil
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from goldstick.core.counts import counted
from tools.browser.browse import WIDTHS, Visit, complaints, look_at
from tools.browser.pages import make_pages, make_site, pages_in

#: What the picture of the report leaves out, so that accuracy and layers fit in: the list and the table that repeat it.
REPEATED = "main > table"

#: And that of a search: perplexity on the few rows of so small a search.
NOISY = "#task, h2:has(+ #task)"


def visits_of(name: str, page: Path, folder: Path) -> list[Visit]:
    """A page at each width, light and dark; printed from the wide window of a reader who prefers dark."""
    return [
        Visit(
            page=page,
            width=width,
            scheme=scheme,
            picture=str(folder / f"{name}-{kind}-{scheme}.png"),
            whole=True,
            query="vLLM" if name == "site" else "",
            paper=str(folder / f"{name}.pdf") if (kind, scheme) == ("desktop", "dark") else "",
        )
        for kind, width in WIDTHS.items()
        for scheme in ("light", "dark")
    ]


def pictures_of(pages: dict[str, Path], folder: Path) -> list[Visit]:
    """The pictures in the documents."""
    start, search = pages["site"], pages["search"]
    return [
        Visit(page=start, width=1280, height=860, picture=str(folder / "start-desktop.webp")),
        Visit(page=start, width=390, height=860, scale=2, picture=str(folder / "start-phone.webp")),
        Visit(page=search, width=1100, height=1500, picture=str(folder / "search.webp"), left_out=NOISY),
        Visit(
            page=pages["compression"], width=1100, height=940, picture=str(folder / "report.webp"), left_out=REPEATED
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the pages, look at them, and end with 1 where anything is wrong."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder for pages, pictures and prints; made anew")
    parser.add_argument("--pictures", type=Path, help="a folder for the pictures in the documents")
    parser.add_argument("--keep", action="store_true", help="take the pages that are there from an earlier run")
    given = parser.parse_args(arguments)
    if not given.keep:
        shutil.rmtree(given.out, ignore_errors=True)
        make_pages(given.out)
        make_site(given.out)
    pages = pages_in(given.out)
    visits = [visit for name, page in pages.items() for visit in visits_of(name, page, given.out / "pictures")]
    wrong = 0
    for visit, sight in zip(visits, look_at(visits), strict=True):
        found = [*complaints(visit, sight)]
        name = f"{Path(visit.picture).stem} ({visit.width} pixels)"
        print(f"{name}: {counted(len(sight.screen['charts']), 'chart')}, {'; '.join(found) or 'good'}")
        wrong += len(found)
    if given.pictures is not None:
        look_at(pictures_of(pages, given.pictures))
    print(f"{counted(len(visits), 'visit')}, {counted(wrong, 'fault')}; pictures and prints: {given.out / 'pictures'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
