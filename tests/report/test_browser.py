"""Pages in headless Chromium: opened from disk at two widths, they say nothing on the console and fit the width."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from goldstick.report.comparison_page import render_comparison
from goldstick.report.page import render_report
from goldstick.report.search_page import render_search
from goldstick.report.sensitivity_page import render_sensitivity
from tests.support.report_content import LAYERS, MODULES, SEARCH, SENSITIVITY, comparison, evaluation, report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = {"phone": 390, "desktop": 1280}
#: What the browser itself says when it has no desktop, no GPU and no user; what a page says is a line with CONSOLE.
CONSOLE = re.compile(r":(?:INFO|WARNING|ERROR):CONSOLE.*")

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here (Debian's package chromium)")


#: A frame as wide as the window of a phone or a desktop, and how wide what it shows would like to be.
FRAME = """<!doctype html><html><body><iframe src="{page}" style="width: {width}px; height: 900px; border: 0"
onload="document.title = 'wide ' + this.contentDocument.documentElement.scrollWidth"></iframe></body></html>"""


def open_page(path: Path, width: int, folder: Path) -> tuple[list[str], str]:
    """Open a file; return what was said on the console, and the page as it stands when everything has run."""
    assert BROWSER is not None
    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
        "--no-first-run", "--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}",
        "--allow-file-access-from-files", f"--window-size={width},900", "--virtual-time-budget=3000", "--dump-dom",
        path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return CONSOLE.findall(done.stderr), done.stdout


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of a compression, of an evaluation, and of two models side by side, which runs a script."""
    folder = tmp_path_factory.mktemp("pages")
    sides = {"before": evaluation([1.0, 0.0] * 50), "after": evaluation([1.0, 1.0, 0.0, 0.0] * 25)}
    found = {
        "compression": render_report(report(*LAYERS, evaluation=sides)),
        "evaluation": render_report(json.dumps(sides["after"] | {"baseline": sides["before"]})),
        "comparison": render_comparison(comparison(*MODULES)),
        "sensitivity": render_sensitivity(SENSITIVITY),
        "search": render_search(SEARCH),
    }
    for name, html in found.items():
        (folder / f"{name}.html").write_text(html)
    return folder


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("name", ["compression", "evaluation", "comparison", "sensitivity", "search"])
def test_a_page_opens_from_disk_without_a_word_on_the_console_and_fits(
    name: str, width: int, pages: Path, tmp_path: Path
) -> None:
    said, shown = open_page(pages / f"{name}.html", width, tmp_path)
    assert said == []
    assert "<h1>" in shown
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(page=(pages / f"{name}.html").as_uri(), width=width))
    said, shown = open_page(frame, width + 40, tmp_path)
    assert said == []
    (wide,) = re.findall(r"<title>wide (\d+)</title>", shown)
    assert 0 < int(wide) <= width


def test_what_a_page_says_and_how_wide_it_is_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "wrong.html"
    page.write_text("<!doctype html><html><body><script>nonesuch()</script><p style='width: 999px'>x</p></body></html>")
    said, _ = open_page(page, 390, tmp_path)
    assert len(said) == 1 and "nonesuch is not defined" in said[0]
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(page=page.as_uri(), width=390))
    assert int(re.findall(r"<title>wide (\d+)</title>", open_page(frame, 430, tmp_path)[1])[0]) > 999


#: Moves the slider of the page in the frame to its smallest size, and says what it shows then, and how charts are.
MOVED = """<!doctype html><html><body><iframe src="{page}" style="width: 390px; height: 900px; border: 0" onload="
const inner = this.contentDocument; const slider = inner.getElementById('size');
const share = (one) => one.getBoundingClientRect().width / inner.body.clientWidth;
const drawn = [...inner.querySelectorAll('.plot')].map(share);
const before = inner.getElementById('at').textContent;
slider.value = '0'; slider.dispatchEvent(new Event('input'));
document.title = JSON.stringify({{ before, after: inner.getElementById('at').textContent,
  cells: [...inner.querySelectorAll('.slid')].map((one) => one.textContent), drawn,
  images: inner.querySelectorAll('#heat image').length }})"></iframe></body></html>"""


def test_the_page_of_a_search_draws_its_charts_and_its_slider_shows_the_recipe_at_another_size(
    pages: Path, tmp_path: Path
) -> None:
    frame = tmp_path / "frame.html"
    frame.write_text(MOVED.format(page=(pages / "search.html").as_uri()))
    said, shown = open_page(frame, 430, tmp_path)
    assert said == []
    (title,) = re.findall(r"<title>(.*)</title>", shown)
    found = json.loads(title)
    assert found["before"] == "0.001400 MB, KL 0.0200, found, on held-out rows"
    assert found["after"] == "0.001200 MB, KL 0.600, the sum of single changes"
    assert found["cells"] == ["w2a16-channel", "w2a16-channel"]
    assert found["images"] == 1  # the cells of the heat map are one picture, which a content policy might forbid
    assert len(found["drawn"]) == 4 and min(found["drawn"]) > 0.9
