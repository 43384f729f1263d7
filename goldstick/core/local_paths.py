"""Names of files as they are told to others, who have no use for the folders of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def last_part(named: str) -> str:
    """The last part of an absolute path, behind a word such as ``text:`` too; all else as it is."""
    if os.path.isabs(named):
        return Path(named).name
    kind, colon, path = named.partition(":")
    return f"{kind}{colon}{Path(path).name}" if os.path.isabs(path) else named


def without_folders(value: Any) -> Any:
    """Plain JSON types with :func:`last_part` of every string in the place of a value."""
    if isinstance(value, str):
        return last_part(value)
    if isinstance(value, Mapping):
        return {key: without_folders(held) for key, held in value.items()}
    return type(value)(without_folders(held) for held in value) if type(value) in (list, tuple) else value
