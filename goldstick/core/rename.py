"""Rename where nothing is: a name that somebody else has taken stays theirs."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
#: What a file system, or a kernel, answers that has no such rename.
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


def rename_noreplace(source: Path, target: Path) -> None:
    """Rename a file or a directory, unless the new name is taken.

    Linux does both in one step (``renameat2`` with ``RENAME_NOREPLACE``). Elsewhere the name is first taken by making
    it, which fails where it exists: an empty directory, which a directory may replace and which stays where somebody
    puts a file into it first; or a hard link.

    Raises:
        FileExistsError: Something has that name, be it a dangling symbolic link.
        OSError: The rename failed for another reason.
    """
    try:
        _renameat2(source, target)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        if source.is_dir() and not source.is_symlink():
            _rename_directory(source, target)
        else:
            _rename_file(source, target)


def _renameat2(source: Path, target: Path) -> None:
    sys.audit("os.rename", source, target, -1, -1)
    call = _libc_renameat2()
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(source), None, str(target))


@cache
def _libc_renameat2() -> Any:
    """The C library's function; ``None`` where it has none."""
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _rename_directory(source: Path, target: Path) -> None:
    target.mkdir()
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        target.rmdir()
        raise


def _rename_file(source: Path, target: Path) -> None:
    os.link(source, target, follow_symlinks=False)
    source.unlink()
