"""What mkdocs does to the pages of the site beside what its plugins do."""

from __future__ import annotations

import re
from typing import Any

#: Sphinx's roles in docstrings, as mkdocstrings leaves them: ``:class:`` before the code that it is about.
ROLE = re.compile(r":(?:class|func|meth|data):(?=<code>)")


def on_page_content(html: str, **_: Any) -> str:
    """The page without the names of roles."""
    return ROLE.sub("", html)
