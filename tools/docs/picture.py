"""``python -m tools.docs.picture``: the pictures in the documents, taken of real pages by a browser without a screen.

Needs the package playwright and a Chromium (``--browser``), which nothing else of goldstick needs.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Flags for machines without a screen, a GPU and a sandbox.
FLAGS = ["--no-sandbox", "--single-process", "--no-zygote", "--in-process-gpu", "--disable-gpu", "--hide-scrollbars"]

#: What the picture of the report leaves out, so that accuracy and layers fit in: the list and the table that repeat it.
LEFT_OUT = "main > table"


def photograph(browser: str, page: Path, picture: Path, width: int, height: int, left_out: str = "") -> None:
    """Open a file and save what a window of so many pixels shows of it, without what ``left_out`` selects."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=FLAGS)
        window = opened.new_page(viewport={"width": width, "height": height})
        window.goto(page.as_uri())
        if left_out:
            window.add_style_tag(content=f"{left_out} {{ display: none }}")
        window.wait_for_timeout(500)
        window.screenshot(path=picture)
        opened.close()


def make_report(folder: Path) -> Path:
    """The report of the bundled model as the quickstart compresses it, measured before and after."""
    goldstick = str(Path(sysconfig.get_path("scripts")) / "goldstick")
    words = ["reference", "-r", "rtn-w4a16-g128", "--evaluate", "text,boolq,squad,ceval", "-o", str(folder / "out")]
    subprocess.run([goldstick, "quantize", *words], check=True)
    return folder / "out" / "report.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the picture of the report, or of a page that is there."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--browser", required=True, help="a Chromium")
    parser.add_argument("--page", type=Path, help="another page than the report of the bundled model")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "report.png")
    parser.add_argument("--width", type=int, default=1100)
    parser.add_argument("--height", type=int, default=940)
    parser.add_argument("--left-out", default=LEFT_OUT, help="a CSS selector")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        page = given.page or make_report(Path(folder))
        given.out.parent.mkdir(parents=True, exist_ok=True)
        photograph(given.browser, page.resolve(), given.out, given.width, given.height, given.left_out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
