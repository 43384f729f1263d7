"""Pages in Chromium, opened from disk, wide and narrow, light and dark, and on paper (`make browser` brings it)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from goldstick.report.comparison_page import render_comparison
from goldstick.report.page import render_report
from goldstick.report.search_page import render_search
from goldstick.report.sensitivity_page import render_sensitivity
from tests.support.report_content import LAYERS, MODULES, SEARCH, SENSITIVITY, comparison, evaluation, report
from tools.browser.browse import WIDTHS, Sight, Visit, complaints, look_at, program

pytestmark = pytest.mark.skipif(program() is None, reason="there is no browser here: make build/browser/.installed")

NAMES = ("compression", "evaluation", "comparison", "sensitivity", "search")


def pages(folder: Path) -> dict[str, Path]:
    """The pages of a compression, an evaluation, a comparison, a sensitivity analysis and a search."""
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
    return {name: folder / f"{name}.html" for name in found}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], tuple[Visit, Sight]]:
    """Every page at every width, light and dark, in one run of the browser; the wide dark ones are printed."""
    folder = tmp_path_factory.mktemp("pages")
    visits = {
        (name, kind, scheme): Visit(
            page=page,
            width=width,
            scheme=scheme,
            picture=str(folder / f"{name}-{kind}-{scheme}.png"),
            paper=str(folder / f"{name}.pdf") if (kind, scheme) == ("desktop", "dark") else "",
        )
        for name, page in pages(folder).items()
        for kind, width in WIDTHS.items()
        for scheme in ("light", "dark")
    }
    return dict(zip(visits, zip(visits.values(), look_at([*visits.values()]), strict=True), strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_opens_without_a_word_fits_and_is_readable_on_screen_and_paper(
    name: str, kind: str, scheme: str, seen: dict[tuple[str, str, str], tuple[Visit, Sight]]
) -> None:
    visit, sight = seen[name, kind, scheme]
    assert [*complaints(visit, sight)] == []
    assert sight.screen["texts"] > 10
    assert Path(visit.picture).read_bytes()[:4] == b"\x89PNG"
    if visit.paper:
        assert sight.paper is not None and Path(visit.paper).read_bytes()[:5] == b"%PDF-"


@pytest.mark.parametrize("kind", WIDTHS)
def test_the_page_of_a_search_draws_its_charts_and_its_slider_shows_the_recipe_at_another_size(
    kind: str, seen: dict[tuple[str, str, str], tuple[Visit, Sight]]
) -> None:
    _, sight = seen["search", kind, "light"]
    charts = {chart["name"]: chart for chart in sight.screen["charts"]}
    assert charts.keys() == {"front", "task", "heat", "scores"}
    assert min(chart["share"] for chart in charts.values()) > 0.95
    assert min(chart["height"] for chart in charts.values()) > 200
    assert sight.slider is not None
    assert sight.slider["before"]["words"] == "0.001400 MB, KL 0.0200, found, on held-out rows"
    assert sight.slider["moved"]["words"] == "0.001200 MB, KL 0.600, the sum of single changes"
    assert sight.slider["moved"]["cells"] == ["w2a16-channel", "w2a16-channel"]
    assert sight.slider["moved"]["command"] == "--size 1200"
    assert sight.slider["after"] == sight.slider["before"]


#: A page with all the faults that are looked for.
WRONG = """<!doctype html><html><head><style>body { background: #fff; color: #ddd }</style></head><body>
<p>pale</p><div class="plot" id="empty" style="height: 300px"></div>
<svg role="img" aria-label="narrow" width="50" height="20"><rect width="9" height="9"/></svg>
<p style="width: 999px">wide</p><img src="nowhere.png"><input type="range" id="size" max="3" value="2">
<output id="at">x</output>
<code id="command"></code><button id="back"></button><script>nonesuch()</script></body></html>"""


def test_every_fault_of_a_page_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "wrong.html"
    page.write_text(WRONG)
    visit = Visit(page=page, width=390, scheme="dark", paper=str(tmp_path / "wrong.pdf"))
    found = "\n".join(complaints(visit, *look_at([visit])))
    for words in (
        "nonesuch is not defined", "not there: ", "nowhere.png", "pixels wide in a window of 390", "has no heading",
        "the chart empty is not drawn", "'pale' has a contrast of 1.4", "is light for a reader who prefers dark",
        "its slider changes nothing", "on paper: is 1007 pixels wide in a window of 718",
    ):  # fmt: skip
        assert words in found, found


def test_a_chart_that_leaves_room_or_is_cut_off_by_paper_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "wrong.html"
    chart = '<svg class="main-svg" width="{}" height="50"><rect width="9" height="9"/></svg>'
    page.write_text(
        "<!doctype html><html><body><h1>x</h1>"
        f'<div class="plot" id="narrow">{chart.format(300)}</div><div class="plot" id="wide">{chart.format(1264)}</div>'
    )
    visit = Visit(page=page, paper=str(tmp_path / "wrong.pdf"))
    found = [*complaints(visit, *look_at([visit]))]
    assert "the chart narrow is 300 pixels wide, 24% of its room" in found
    assert "on paper: the chart wide is 1264 pixels wide, 100% of its room" in found
    assert not any(words.startswith("the chart wide") for words in found)
