"""The directory beside an output in which a run works: held by one run at a time, and known as goldstick's by what
lies in it.

::

    .NAME.work/
        goldstick.lock     says that the directory is goldstick's; locked by the run that works in it
        owner.json         which process that is, or was: host, boot, process
        checkpoint/        grows, and becomes the output by one rename
        shards/            where blocks are written, if the checkpoint is one file that is made of them at the end
        former/            the output that was replaced, until the new one is in its place

A name alone proves nothing: a directory without the marker is somebody else's, and is neither emptied nor written into.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from goldstick.core.json_files import check_writable, dump_json, parse_json, write_atomically
from goldstick.errors import DataError, OutputError

LOCK, CHECKPOINT, SHARDS, FORMER = "goldstick.lock", "checkpoint", "shards", "former"
_OWNER = "owner.json"
_MARKER = b"This directory is the working directory of a goldstick run, which removes it.\n"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def working_directory(output: Path) -> Path:
    """Where a run for an output works."""
    return output.with_name(f".{output.name}.work")


def is_working_directory(path: Path) -> bool:
    """Whether a path is a run's working directory, by the marker in it."""
    try:
        return not path.is_symlink() and (path / LOCK).read_bytes() == _MARKER
    except OSError:
        return False


@contextmanager
def held(output: Path, *, take_over: bool) -> Iterator[Path]:
    """The working directory of a run, held against other runs until the end.

    What an earlier run left in it is still there.

    Args:
        output: The directory that the run makes.
        take_over: Whether to go on where the earlier run was on another machine, whose locks may not be seen here.

    Raises:
        OutputError: Another run holds it, or may hold it; or it is not goldstick's.
    """
    path = working_directory(output)
    with _locked(path, output):
        before = _owner(path)
        if before and _elsewhere(before) and not take_over:
            raise OutputError(
                f"A run on {before.get('host')} left {path}, and whether it still works there cannot be seen from this "
                "machine. If it is over, give --resume or --overwrite; else choose another -o."
            )
        yield path


@contextmanager
def held_file(path: Path) -> Iterator[None]:
    """Hold a file that a run writes, or keeps its measurements in, against other runs until the end.

    Raises:
        OutputError: Another run holds it, or nothing can be written there.
    """
    check_writable(path, overwrite=True)
    with ExitStack() as stack:
        try:
            place = stack.enter_context(held(path, take_over=True))
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror or error}. Name another place.") from error
        try:
            yield
        finally:
            if [entry.name for entry in place.iterdir()] == [LOCK]:  # else a directory of that name has a run in it
                remove(place)


def sign(path: Path) -> None:
    """Write down that it is this process which works in a directory that it holds."""
    write_atomically(path / _OWNER, dump_json(_this_process()).encode())


def remove(path: Path, last: str = "") -> None:
    """Remove a working directory that this process holds: everything, then ``last``, then the marker."""
    clear(path, keep=last)
    for name in (last, LOCK):
        if name:
            (path / name).unlink(missing_ok=True)
    with suppress(OSError):  # the next run holds it already
        path.rmdir()


def files_below(directory: Path) -> Iterator[str]:
    """Names of all that lies in a directory and its folders, relative to it; links, and folders that are empty, too."""
    for place, folders, files in os.walk(directory):
        below = Path(place).relative_to(directory)
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        yield from ((below / name).as_posix() for name in (*files, *links))
        if not files and not folders and Path(place) != directory:
            yield below.as_posix()


def bytes_of_tensors(directory: Path) -> int:
    """Bytes of the files of weights and hidden states in a directory and its folders; none where it is not there."""
    found = 0
    for name in files_below(directory):
        if name.endswith((".safetensors", ".gguf")):
            with suppress(FileNotFoundError):  # the run that holds it has just removed it
                found += (directory / name).lstat().st_size
    return found


def clear(path: Path, keep: str = "") -> None:
    """Remove what lies in a working directory that this process holds, but for its marker and ``keep``."""
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name not in (LOCK, keep):
            entry.unlink()


@contextmanager
def _locked(path: Path, output: Path) -> Iterator[None]:
    while True:
        try:
            file = _opened(path)
        except FileNotFoundError:
            continue  # the run that held it has just removed it
        with file:
            _lock(file, output)
            if not _is_named(file, path / LOCK):
                continue
            _mark(file, path)
            yield
            return


def _opened(path: Path) -> IO[bytes]:
    """The lock's file, made where the directory is new or empty."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise _foreign(path) from None
    if path.is_symlink() or (any(path.iterdir()) and not os.path.lexists(path / LOCK)):
        raise _foreign(path)
    try:
        return open(path / LOCK, "a+b", buffering=0, opener=_opened_itself)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise _foreign(path) from error
        raise


def _opened_itself(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _lock(file: IO[bytes], output: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OutputError(
            f"Another run is writing {output} at this moment. Wait for it, or choose another -o."
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise OutputError(
            f"The file system of {output} has no locks, so two runs could spoil each other's work there. Choose "
            "another -o, and copy the result."
        ) from error


def _is_named(file: IO[bytes], path: Path) -> bool:
    """Whether the open file is still what has that name, which a run that ended in the meantime may have removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


def _mark(file: IO[bytes], path: Path) -> None:
    """Write the marker where it is not there yet, or was not written to its end."""
    file.seek(0)
    found = file.read()
    if found == _MARKER:
        return
    alone = [entry.name for entry in path.iterdir()] == [LOCK]
    if not alone or not _MARKER.startswith(found):
        raise _foreign(path)
    file.write(_MARKER[len(found) :])
    os.fsync(file.fileno())


def _foreign(path: Path) -> OutputError:
    return OutputError(
        f"{path} lies where goldstick would work, and it did not make that. Move it away, or choose another -o."
    )


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "boot": _boot(), "process": os.getpid()}


def _boot() -> str:
    """What names the running kernel: containers of one machine share it, and with it their locks."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _owner(path: Path) -> dict[str, Any]:
    """Who held the directory before; empty where nothing says so."""
    try:
        found = parse_json((path / _OWNER).read_text(encoding="utf-8"), _OWNER)
    except (OSError, UnicodeDecodeError, DataError):
        return {}
    return found if isinstance(found, dict) else {}


def _elsewhere(owner: dict[str, Any]) -> bool:
    """Whether an owner was on another machine; one that was started anew has the same name, and nothing runs on."""
    return owner.get("boot") != _boot() and owner.get("host") != socket.gethostname()
