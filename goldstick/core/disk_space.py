"""Room on disks: what would find one full hours later is refused before it begins."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from goldstick.core.processes import local_count
from goldstick.errors import OutputError


def require_space(output: Path, nbytes: int, what: str = "", held: int = 0) -> None:
    """Refuse to start what the disk of an output cannot hold.

    Args:
        output: What will be written.
        nbytes: How large it will be.
        what: What needs so much, where that is more than the output.
        held: Bytes of it that a run which goes on finds there.

    Raises:
        OutputError: Less is free.
    """
    parent = output.absolute().parent
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    if free < nbytes - held:
        there = f", has {held:,} of them," if held else ""
        raise OutputError(
            f"{what or output} needs {nbytes:,} bytes{there} and the disk of {parent} has {free:,} free. Free some "
            "space, or choose another -o."
        )


def free_for_temporary_files() -> int:
    """Bytes that are free where temporary files lie; of several processes on a machine the part of each."""
    return shutil.disk_usage(tempfile.gettempdir()).free // local_count()


def require_temporary_space(nbytes: int, what: str) -> None:
    """Refuse to start what temporary files have no room for.

    Args:
        nbytes: How much will lie in them together.
        what: What leaves it there.

    Raises:
        OutputError: Less is free.
    """
    free = free_for_temporary_files()
    if free < nbytes:
        each = " for each of the processes here" if local_count() > 1 else ""
        raise OutputError(
            f"{what} needs {nbytes:,} bytes for temporary files, and {tempfile.gettempdir()} has {free:,} free{each}. "
            "Free some space there, name a folder of another disk by TMPDIR, or give fewer or shorter samples."
        )
