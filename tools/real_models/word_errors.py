"""Errors of a transcript: the least edits that make it what was said."""

from __future__ import annotations

import re
from collections.abc import Sequence


def words(text: str) -> list[str]:
    """Lower case, without marks but apostrophes inside words; a hyphen parts words."""
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower().replace("’", "'"))


def edits(heard: Sequence[str], said: Sequence[str]) -> int:
    """The least insertions, deletions and substitutions that turn ``heard`` into ``said`` (Levenshtein)."""
    row = list(range(len(said) + 1))
    for number, one in enumerate(heard, 1):
        above, row[0] = row[0], number
        for place, other in enumerate(said, 1):
            above, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, above + (one != other))
    return row[-1]
