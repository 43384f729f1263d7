"""Staging: an output directory appears whole, by one rename, or not at all."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from goldstick.errors import OutputError
from goldstick.formats.unused_tensors import MANIFEST_NAME as MANIFEST_NAME

#: Bytes of a name that leave room, among the 255 of most file systems, for what a directory is called while it grows.
_LONGEST_NAME = 220

#: The way out of an unfinished run that cannot be gone on with.
ANEW = "Give --overwrite, without --resume, to start anew."


def check_output(output: Path, overwrite: bool, resume: bool = False) -> None:
    """Refuse an output directory that would lose something, before any work is done.

    Args:
        output: The directory to make.
        overwrite: Whether it may replace what goldstick wrote.
        resume: Whether it may be there because its run was stopped at the very end, or is finished; whoever runs it
            then finds out which run that was.

    Raises:
        OutputError: It exists and may not be overwritten, or its parent cannot be written.
    """
    nbytes = len(os.fsencode(output.name))
    if nbytes > _LONGEST_NAME:
        raise OutputError(
            f"The name of the output, {output.name[:40]}…, has {nbytes} bytes, and goldstick makes directories with "
            f"names of up to {_LONGEST_NAME}. Choose a shorter -o."
        )
    if output.is_symlink():
        raise OutputError(f"The output {output} is a symbolic link; name the directory itself.")
    if output.exists() and not (resume and (is_put_in_place(output) or _has_no_unfinished_run(output))):
        if not overwrite:
            raise OutputError(f"The output {output} exists already. Choose another -o, or give --overwrite.")
        if not (output / MANIFEST_NAME).is_file():
            raise OutputError(
                f"The output {output} holds no {MANIFEST_NAME}, so goldstick did not write it and will not overwrite "
                "it. "
                "Choose another -o, or remove it yourself."
            )
    parent = output.absolute().parent
    if parent.exists() and not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise OutputError(f"Nothing can be written in {parent}. Choose another -o.")


def refuse_checkpoint(directory: Path) -> None:
    """Refuse to write another report where a checkpoint has its own.

    Raises:
        OutputError: The directory is a checkpoint that goldstick wrote.
    """
    if (directory / MANIFEST_NAME).is_file():
        raise OutputError(
            f"{directory} is a checkpoint, whose own report.json and report.html would be lost. Name another directory."
        )


def working_directory(output: Path) -> Path:
    """Where a run that can be gone on with works."""
    return output.with_name(f".{output.name}.work")


def is_put_in_place(output: Path) -> bool:
    """Whether a run was stopped after ``output`` had come into place, while it removed what was left."""
    work = working_directory(output.absolute())
    return (output / MANIFEST_NAME).is_file() and work.is_dir() and not (work / "checkpoint").exists()


def _has_no_unfinished_run(output: Path) -> bool:
    return (output / MANIFEST_NAME).is_file() and not working_directory(output.absolute()).exists()


def check_space(output: Path, nbytes: int) -> None:
    """Refuse to start what the disk cannot hold.

    Raises:
        OutputError: Fewer bytes are free than will be written.
    """
    parent = output.absolute().parent
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    if free < nbytes:
        raise OutputError(
            f"{output} needs {nbytes:,} bytes and the disk has {free:,} free. Free some space, or choose another -o."
        )


@contextmanager
def staged(output: Path, overwrite: bool) -> Iterator[Path]:
    """A working directory beside ``output`` that becomes it at the end, or vanishes on an error.

    Raises:
        OutputError: See :func:`check_output`; also where writing fails.
    """
    _remove_leftovers(output.absolute())
    check_output(output, overwrite)
    output = output.absolute()
    work = output.with_name(f".{output.name}.partial-{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        work.mkdir()
        yield work
        sync_directory(work)
        if output.exists():
            old = output.with_name(f".{output.name}.old-{os.getpid()}")
            output.rename(old)
            work.rename(output)
            shutil.rmtree(old)
        else:
            work.rename(output)
        sync_directory(output.parent)
    except OSError as error:
        raise OutputError(
            f"Writing {output} failed: {error.strerror or error}. Free space or choose another -o; nothing that "
            "existed "
            "before was touched."
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _remove_leftovers(output: Path) -> None:
    """Remove what killed runs for the same output left, and put back a former output that one had moved away."""
    for path in output.parent.glob(f".{glob.escape(output.name)}.*-*"):
        kind, _, pid = path.name.removeprefix(f".{output.name}.").partition("-")
        if kind not in ("partial", "old") or not pid.isdigit() or (int(pid) != os.getpid() and _alive(int(pid))):
            continue
        if kind == "old" and not output.exists():  # killed between its two renames
            path.rename(output)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def write_file(path: Path, data: bytes) -> None:
    """Write a small file and sync it to disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
