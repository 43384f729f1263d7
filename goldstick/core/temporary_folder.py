"""Folders for what one process needs for a while, which are removed even where that process was killed.

A folder is proven to be goldstick's own before it is removed: by a file inside that says what the folder is and what it
may hold, and that its owner keeps locked. A name proves nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from goldstick.errors import OutputError

#: The file that marks a folder, and is locked as long as somebody uses it.
MARKER = ".goldstick-temporary"


@contextmanager
def temporary_folder(purpose: str, holds: Collection[str], place: Path | None = None) -> Iterator[Path]:
    """A folder of this process alone, removed at the end; those that killed processes left are removed first.

    Args:
        purpose: Part of its name: ``goldstick-PURPOSE-…``.
        holds: Every file that will lie in it, relative to it; a folder that holds anything else is never taken for one
            that a killed process left.
        place: Where it lies; where temporary files do if nothing is said.

    Raises:
        OutputError: There is no place for temporary files.
    """
    prefix = f"goldstick-{purpose}-"
    try:
        _remove_abandoned(place or Path(tempfile.gettempdir()), prefix)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    except OSError as error:
        remedy = "name a folder by TMPDIR" if place is None else "choose another output directory"
        raise OutputError(
            f"No temporary folder can be made: {error.strerror or error}. Free space, or {remedy}."
        ) from error
    try:
        with (folder / MARKER).open("x", encoding="utf-8") as marker:
            fcntl.flock(marker, fcntl.LOCK_EX)
            marker.write(json.dumps({"folder": folder.name, "holds": sorted(holds)}))
            marker.flush()
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_in_use(folder: Path) -> bool:
    """Whether a folder is a temporary one of a process of goldstick that runs, which a copy of one is not."""
    try:
        descriptor = os.open(folder / MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _remove_abandoned(place: Path, prefix: str) -> None:
    for path in place.glob(f"{prefix}*"):
        with suppress(OSError, ValueError, KeyError, TypeError):  # of a stranger, or gone meanwhile: left as it is
            _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        return
    descriptor = os.open(path / MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "r", encoding="utf-8") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError where its owner lives
        told = json.loads(marker.read(1 << 20))
        if told["folder"] != path.name or not _files_of(path) <= {MARKER, *told["holds"]}:
            return
        shutil.rmtree(path)


def _files_of(path: Path) -> set[str]:
    """Everything in a folder but the folders, relative to it; links are not followed."""
    return {
        os.path.relpath(os.path.join(folder, name), path)
        for folder, folders, files in os.walk(path)
        for name in (*files, *(name for name in folders if os.path.islink(os.path.join(folder, name))))
    }
