"""The part of a page that a script writes: what lies between two comments."""

from __future__ import annotations


def replaced(page: str, name: str, text: str) -> str:
    """A page with ``text`` in the place of what lies between the comments that ``name`` begins and ends.

    Raises:
        ValueError: The page has not both comments, each once.
    """
    begin, end = f"<!-- {name}: written by tools/docs -->\n", f"<!-- end of {name} -->\n"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"The page needs {begin!r} and {end!r}, once each.")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text.strip()}\n\n{end}{rest.partition(end)[2]}"
