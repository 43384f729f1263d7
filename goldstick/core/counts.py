"""Counts in words."""

from __future__ import annotations


def counted(count: int, one: str, several: str = "") -> str:
    """``1 layer``, ``2 layers``, ``1,200 layers``: a count with its noun.

    Args:
        count: How many.
        one: The noun for one of them.
        several: The noun for any other number; ``one`` with an s where empty.
    """
    return f"{count:,} {one if count == 1 else several or one + 's'}"
