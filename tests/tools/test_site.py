"""The site of the documents builds, and every link and anchor on it leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.docs.site import on_page_content

ROOT = Path(__file__).parents[2]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    api = (tmp_path / "site" / "reference" / "api.html").read_text(encoding="utf-8")
    for name in ("goldstick.api.quantize", "goldstick.api.load", "goldstick.errors.RecipeError"):
        assert f'id="{name}"' in api
    assert not re.search(r":(class|func):", api)
    start = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    fetched = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="?(https?:[^" >]+)', start)
    assert fetched == [], "nothing is fetched from elsewhere"
    notebooks = sorted((tmp_path / "site" / "notebooks").glob("*.html"))
    assert len(notebooks) >= 3
    for file in notebooks:
        page = file.read_text(encoding="utf-8")
        assert "import goldstick" in re.sub("<[^>]+>", "", page), f"{file.name} shows no code"
        assert re.findall(r'href="?(?!https?:)[^" >]+\.md[" #]', page) == [], f"{file.name} links to sources"
        assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="?(https?:[^" >]+|"")', page) == []


def test_a_notebook_links_to_pages_of_the_site_or_is_refused() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="notebooks/one.ipynb"))
    files = SimpleNamespace(get_file_from_path={"search.md": "a page"}.get)
    link = '<a href="../search.md">search</a>'
    assert on_page_content(link, page=page, files=files) == '<a href="../search.html">search</a>'
    with pytest.raises(ValueError, match=r"one\.ipynb links to \.\./lost\.md"):
        on_page_content(link.replace("search.md", "lost.md"), page=page, files=files)


def test_roles_of_docstrings_become_code() -> None:
    assert on_page_content("<p>a :class:<code>Recipe</code></p>") == "<p>a <code>Recipe</code></p>"
