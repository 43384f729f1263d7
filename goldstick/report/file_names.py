"""Names of the files that tell of a run, apart from what makes them."""

from __future__ import annotations

#: The report as data.
FILE_NAME = "report.json"
#: The report as a page.
PAGE_NAME = "report.html"
#: What a search found, as a page.
SEARCH_PAGE = "search.html"
