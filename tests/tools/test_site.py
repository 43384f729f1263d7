"""The site of the documents builds, and every link and anchor on it leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest

from tools.browser.browse import WIDTHS, Visit, complaints, look_at, program
from tools.docs.site import on_page_content

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The site, and how its building ended."""
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    site = tmp_path_factory.mktemp("docs") / "site"
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    return site, ended


def test_the_site_builds_without_a_warning(built: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    site, ended = built
    assert (ended.returncode, ended.stderr) == (0, "")
    api = (site / "reference" / "api.html").read_text(encoding="utf-8")
    for name in ("goldstick.api.quantize", "goldstick.api.load", "goldstick.errors.RecipeError"):
        assert f'id="{name}"' in api
    assert not re.search(r":(class|func):", api)
    start = (site / "index.html").read_text(encoding="utf-8")
    fetched = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="?(https?:[^" >]+)', start)
    assert fetched == [], "nothing is fetched from elsewhere"
    notebooks = sorted((site / "notebooks").glob("*.html"))
    assert len(notebooks) >= 3
    for file in notebooks:
        page = file.read_text(encoding="utf-8")
        assert "import goldstick" in re.sub("<[^>]+>", "", page), f"{file.name} shows no code"
        assert re.findall(r'href="?(?!https?:)[^" >]+\.md[" #]', page) == [], f"{file.name} links to sources"
        assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="?(https?:[^" >]+|"")', page) == []


@pytest.mark.skipif(program() is None, reason="there is no browser here: make build/browser/.installed")
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_start_page_opens_from_disk_and_its_search_finds_something(
    width: int, scheme: Literal["light", "dark"], built: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    visit = Visit(page=built[0] / "index.html", width=width, scheme=scheme, query="vLLM")
    (sight,) = look_at([visit])
    assert [*complaints(visit, sight)] == []
    assert sight.answers is not None and any("vLLM" in title for title in sight.answers)


def test_a_notebook_links_to_pages_of_the_site_or_is_refused() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="notebooks/one.ipynb"))
    files = SimpleNamespace(get_file_from_path={"search.md": "a page"}.get)
    link = '<a href="../search.md">search</a>'
    assert on_page_content(link, page=page, files=files) == '<a href="../search.html">search</a>'
    with pytest.raises(ValueError, match=r"one\.ipynb links to \.\./lost\.md"):
        on_page_content(link.replace("search.md", "lost.md"), page=page, files=files)


def test_roles_of_docstrings_become_code() -> None:
    assert on_page_content("<p>a :class:<code>Recipe</code></p>") == "<p>a <code>Recipe</code></p>"
