"""What mkdocs does to the pages of the site beside what its plugins do."""

from __future__ import annotations

import posixpath
import re
from typing import Any

#: Sphinx's roles in docstrings, as mkdocstrings leaves them: ``:class:`` before the code that it is about.
ROLE = re.compile(r":(?:class|func|meth|data):(?=<code>)")
#: A link of a notebook to a page, which mkdocs rewrites in Markdown alone.
PAGE_LINK = re.compile(r'href="(?!https?:)([^"#]+\.md)"')
#: A script without an address, which notebooks come with where no formula is shown.
NO_SCRIPT = re.compile(r'<script src=""[^>]*>\s*</script>')


def on_page_content(html: str, page: Any = None, files: Any = None, **_: Any) -> str:
    """The page without the names of roles; a notebook's links lead to the pages of the site.

    Raises:
        ValueError: A notebook links to a page that is not there.
    """
    html = ROLE.sub("", html)
    if page is None or not page.file.src_uri.endswith(".ipynb"):
        return html

    def to_page(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link[1]))
        if files.get_file_from_path(target) is None:
            raise ValueError(f"{page.file.src_uri} links to {link[1]}, and there is no docs/{target}; correct the link")
        return f'href="{link[1].removesuffix(".md")}.html"'

    return PAGE_LINK.sub(to_page, NO_SCRIPT.sub("", html))
