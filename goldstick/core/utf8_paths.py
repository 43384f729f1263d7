"""Paths that libraries can open: those of tokenizers take UTF-8 alone."""

from __future__ import annotations

from pathlib import Path

from goldstick.errors import UsageError


def require_utf8(path: Path) -> None:
    """Refuse a path with bytes that are not UTF-8, before the work that would end where a tokenizer is read.

    Raises:
        UsageError: It has some, which are shown as escapes.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = str(path).encode(errors="backslashreplace").decode()
        raise UsageError(
            f"The path {shown} has bytes that are not UTF-8, and libraries that read tokenizers cannot open it. Rename "
            "what has such a name."
        ) from None
