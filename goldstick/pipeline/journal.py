"""Journal: what a long run has finished, so that a kill at any instant costs no more than the block at hand.

A run works in a directory of its own beside the output::

    .NAME.work/
        lock                     held by the process that writes here
        run.json                 what the run is of: recipe, source, data, versions
        journal.json             what is finished; replaced as a whole after every block
        hidden-00012.safetensors the hidden states that block 12 is given
        checkpoint/              becomes the output, by one rename

The weights of a block are appended to the checkpoint's files and synced, the hidden states behind it get a file of a
new name, and only then the journal says so. Bytes behind the journal's word are cut off by the next run.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from goldstick.errors import OutputError
from goldstick.pipeline.staging import check_output, sync_directory
from goldstick.report.storage import dump_json, write_atomically

_RUN, _JOURNAL, _LOCK = "run.json", "journal.json", "lock"


class WorkDirectory:
    """The working directory of a run that can be gone on with.

    Attributes:
        path: The directory.
        checkpoint: Where the checkpoint grows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint"

    def journal(self) -> dict[str, Any]:
        """What is finished; empty at the start."""
        try:
            found: dict[str, Any] = json.loads((self.path / _JOURNAL).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise OutputError(
                f"{self.path / _JOURNAL} is damaged: {error}. Remove {self.path}, start again."
            ) from error
        return found

    def commit(self, journal: Mapping[str, Any]) -> None:
        """Say what is finished; on disk when this returns."""
        write_atomically(self.path / _JOURNAL, dump_json(journal).encode())


@contextmanager
def work_directory(output: Path, run: Mapping[str, str], *, resume: bool, overwrite: bool) -> Iterator[WorkDirectory]:
    """The working directory of a run, held against other runs; at the end its checkpoint becomes ``output``.

    On an error or a signal it stays, and the error says how to go on.

    Args:
        output: The directory to make.
        run: What the run is of, by what the user calls it: ``recipe``, ``source``, ``data``, ``versions``, …
        resume: Whether to go on with an unfinished run.
        overwrite: Whether a finished output, or an unfinished run, may be thrown away.

    Raises:
        OutputError: The output exists, another process works on it, an unfinished run is there and neither ``resume``
            nor ``overwrite`` was given, or it is of something else.
    """
    check_output(output, overwrite)
    output = output.absolute()
    path = output.with_name(f".{output.name}.work")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with _locked(path, output):
            _prepare(path, output, run, resume, overwrite)
            work = WorkDirectory(path)
            try:
                yield work
            except BaseException as error:
                done = work.journal().get("blocks_done", 0)
                error.add_note(f"{done} blocks are finished and kept in {path}: give --resume to go on after them.")
                raise
            with uninterrupted():
                _put_in_place(work, output)
    except OSError as error:
        raise OutputError(
            f"Writing {output} failed: {error.strerror or error}. Free space, then give --resume to go on where it "
            "stopped; nothing that existed before was touched."
        ) from error


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let an interrupt or a termination that comes inside wait for the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def later(number: int, _: FrameType | None) -> None:
        waiting.append(number)

    before = {number: signal.signal(number, later) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])


@contextmanager
def _locked(path: Path, output: Path) -> Iterator[None]:
    with (path / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputError(
                f"Another run is writing {output} at this moment. Wait for it, or choose another -o."
            ) from error
        yield


def _prepare(path: Path, output: Path, run: Mapping[str, str], resume: bool, overwrite: bool) -> None:
    found = path / _RUN
    if found.exists() and not resume:
        if not overwrite:
            raise OutputError(
                f"An unfinished run for {output} lies in {path}. Give --resume to go on with it, or --overwrite to "
                "start anew."
            )
        _empty(path)
    if (
        not found.exists() or not (path / "checkpoint").is_dir()
    ):  # nothing was begun, or a run was cut short at its first or last step
        _empty(path)
        (path / "checkpoint").mkdir()
        write_atomically(found, dump_json(run).encode())
        return
    before: dict[str, str] = json.loads(found.read_text(encoding="utf-8"))
    changed = [name for name in run if before.get(name) != run[name]]
    if changed:
        raise OutputError(
            f"The unfinished run in {path} was made with another {' and another '.join(changed)}, so it cannot be gone "
            "on with. Restore that, or give --overwrite (without --resume) to start anew."
        )


def _empty(path: Path) -> None:
    (path / _RUN).unlink(missing_ok=True)  # first: without it the rest counts for nothing
    sync_directory(path)
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()


def _put_in_place(work: WorkDirectory, output: Path) -> None:
    sync_directory(work.checkpoint)
    old = output.with_name(f".{output.name}.old-{os.getpid()}")
    if output.exists():
        output.rename(old)
    work.checkpoint.rename(output)
    sync_directory(output.parent)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(work.path)
