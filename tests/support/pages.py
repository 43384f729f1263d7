"""Reading a page as a browser would: is it well formed, what does it load, what does it say."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

VOID = frozenset({"meta", "input", "br", "link", "img"})


class Page(HTMLParser):
    """A page, read; an AssertionError where an element is closed that was not the last one opened.

    Attributes:
        tags: every element's name and attributes.
        text: the text outside styles and scripts, white space joined.
        scripts: what stands in script elements.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self._words: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], f"never closed: {self._open}"
        self.text = " ".join("".join(self._words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside == "script":
            self.scripts.append(data)
        elif inside != "style":
            self._words.append(data + " ")

    def all(self, tag: str) -> list[dict[str, str]]:
        """The attributes of every element of that name."""
        return [attributes for name, attributes in self.tags if name == tag]


def check_alone(html: str, scripts: int = 0) -> Page:
    """The page, if it loads nothing, runs nothing but its own script, and every table and drawing has a name."""
    page = Page(html)
    for tag, attributes in page.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "foreignobject"}, tag
        assert not {"src", "href", "srcset", "action", "style"} & set(attributes), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
    assert not re.search(r"https?://|url\(|@import", html)
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert len(page.scripts) == len(page.all("script")) == scripts
    for script in page.scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}';" in policy
    if not scripts:
        assert "script-src 'none';" in policy
    assert len(page.all("table")) == len(page.all("caption"))
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert page.all("html") == [{"lang": "en"}]
    return page
