"""Open pages in a browser and say what is seen, as JSON; run by `tools.browser.browse` in the environment of a browser.

On its standard input is ``{"program": PATH, "visits": [VISIT, …]}``. What a visit is given and what it finds is
described in `tools.browser.browse.Visit` and `Sight`.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

#: For machines without a GPU, and for root, whom Chromium gives no sandbox. The pages are our own.
FLAGS = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
#: How many pixels wide a sheet of A4 is, without margins of 10 mm.
PAPER = 718
#: What a page looks like: its width, its charts, and the contrast of every text with what is behind it.
MEASURE = (Path(__file__).parent / "measure.js").read_text()
#: Move the slider of a search to its smallest size, and back.
SLIDE = """() => {
  const slider = document.getElementById("size");
  const seen = () => ({
    words: document.getElementById("at").textContent, command: document.getElementById("command").textContent,
    cells: [...document.querySelectorAll(".slid")].map((one) => one.textContent),
  });
  const before = seen();
  slider.value = "0";
  slider.dispatchEvent(new Event("input"));
  const moved = seen();
  document.getElementById("back").click();
  return { before, moved, after: seen() };
}"""


def look(browser: Any, visit: dict[str, Any]) -> dict[str, Any]:
    """Open a page as a visit says."""
    context = browser.new_context(
        viewport={"width": visit["width"], "height": visit["height"]},
        color_scheme=visit["scheme"],
        device_scale_factor=visit["scale"],
    )
    page = context.new_page()
    said: list[str] = []
    fetched: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("requestfailed", lambda request: said.append(f"not there: {request.url}"))
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(Path(visit["page"]).resolve().as_uri())
    page.wait_for_timeout(300)  # charts that wait for the layout
    found: dict[str, Any] = {"screen": page.evaluate(MEASURE), "slider": None, "paper": None, "answers": None}
    if page.query_selector("#size") is not None:
        found["slider"] = page.evaluate(SLIDE)
        page.wait_for_timeout(300)
    if visit["query"]:
        page.fill("[data-md-component=search-query]", visit["query"])
        page.wait_for_timeout(1500)
        found["answers"] = page.eval_on_selector_all(
            ".md-search-result__item h1", "all => all.map(one => one.textContent)"
        )
        page.keyboard.press("Escape")
        page.evaluate("document.getElementById('__search').checked = false")
        page.wait_for_timeout(500)
    if visit["picture"]:
        _photograph(context, page, visit)
    if visit["paper"]:
        margins = dict.fromkeys(("top", "right", "bottom", "left"), "10mm")
        page.pdf(path=visit["paper"], format="A4", print_background=True, margin=margins)
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.wait_for_timeout(300)
        charts = page.evaluate(MEASURE)["charts"]  # before a window of another size would help them
        page.set_viewport_size({"width": PAPER, "height": 1047})
        found["paper"] = page.evaluate(MEASURE) | {"charts": charts}
    context.close()
    return {
        **found,
        "said": said,
        "fetched": [url for url in fetched if not url.startswith(("file:", "data:", "blob:"))],
    }


def _photograph(context: Any, page: Any, visit: dict[str, Any]) -> None:
    """What the window shows, or all of the page, as PNG or WebP."""
    picture = Path(visit["picture"])
    picture.parent.mkdir(parents=True, exist_ok=True)
    if visit["left_out"]:
        page.add_style_tag(content=f"{visit['left_out']} {{ display: none }}")
    if picture.suffix != ".webp":
        page.screenshot(path=picture, full_page=visit["whole"])
        return
    taken = context.new_cdp_session(page).send(
        "Page.captureScreenshot", {"format": "webp", "quality": 80, "captureBeyondViewport": visit["whole"]}
    )
    picture.write_bytes(base64.b64decode(taken["data"]))


def main() -> int:
    """Do what standard input says."""
    from playwright.sync_api import sync_playwright

    asked = json.load(sys.stdin)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=asked["program"], args=FLAGS)
        seen = [look(browser, visit) for visit in asked["visits"]]
        print(json.dumps({"version": browser.version, "seen": seen}))
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
