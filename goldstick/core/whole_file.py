"""A file that is there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from goldstick.core.rename import rename_noreplace


@contextmanager
def whole_file(path: Path, *, replace: bool) -> Iterator[IO[bytes]]:
    """A file to write into, which gets its name at the end, synced to the disk; on an error it vanishes.

    Whoever reads ``path``, at any moment and after a loss of power, finds the former file or the whole new one. The
    temporary name beside it is random and made anew, so nothing that has a name is written into.

    Args:
        path: The file.
        replace: Whether a file of that name may be replaced.

    Raises:
        FileExistsError: It exists, and ``replace`` is false.
        OSError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            rename_noreplace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # it is in place, and some file systems cannot sync a directory
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
