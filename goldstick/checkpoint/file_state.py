"""What a file is known by: its sha256, and the state by which a change is noticed without reading it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

#: Device, inode, bytes, and the times of the last change of content and of anything, in nanoseconds. The last time is
#: the file system's own: a tool that puts the other one back cannot set it.
FileState = tuple[int, int, int, int, int]


def file_state(path: Path) -> FileState | None:
    """The state of a file, or of what a link leads to; ``None`` where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def states_in(directory: Path, further: Iterable[Path] = ()) -> Mapping[Path, FileState]:
    """Real path → state of every file of a directory, and of further ones, such as those in its folders."""
    states = {path.resolve(): file_state(path) for path in (*directory.iterdir(), *further) if path.is_file()}
    return {path: state for path, state in states.items() if state is not None}


def file_sha256(path: Path) -> str:
    """sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
