"""Journal: what a long run has finished, so that a kill at any instant costs the block or the epoch at hand, no more.

A run works in a directory beside the output (see :mod:`goldstick.checkpoint.working_directory`) and adds to it::

    .NAME.work/
        run.json                 what the run is of: recipe, source, data, versions
        journal.json             what is finished; replaced as a whole after every block
        hidden-00012.safetensors the hidden states that block 12 is given
        training/                how far each training is, replaced as a whole after every epoch

The weights of a block are appended to the checkpoint's files and synced, the hidden states behind it get a file of a
new name, and only then the journal says so. Bytes behind the journal's word are cut off by the next run.

At the end an output that is to be replaced goes into the working directory, the checkpoint becomes the output, and what
is left is removed, ``run.json`` last. So a run that finds its output in place and ``run.json`` beside it has nothing to
do but to tidy up, and one that finds neither puts the former output back.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from goldstick.checkpoint.staging import (
    ANEW,
    RUN_NAME,
    check_output,
    is_put_in_place,
    located,
    put_in_place,
    recover,
    unfinished,
    writing,
)
from goldstick.checkpoint.working_directory import (
    CHECKPOINT,
    SHARDS,
    bytes_of_tensors,
    clear,
    held,
    remove,
    sign,
    working_directory,
)
from goldstick.core.counts import counted
from goldstick.core.json_files import dump_json, parse_json, write_atomically
from goldstick.core.whole_file import sync_directory
from goldstick.errors import DataError, OutputError

_JOURNAL = "journal.json"


class WorkDirectory:
    """The working directory of a run that can be gone on with.

    Attributes:
        path: The directory.
        checkpoint: Where the checkpoint grows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / CHECKPOINT

    def journal(self) -> dict[str, Any]:
        """What is finished; empty at the start."""
        return _read(self.path / _JOURNAL)

    def begin_checkpoint(self) -> None:
        """Remove what an earlier run left in the checkpoint, for one that writes it in one go."""
        shutil.rmtree(self.checkpoint)
        self.checkpoint.mkdir()

    def commit(self, journal: Mapping[str, Any]) -> None:
        """Say what is finished; on disk when this returns."""
        _write(self.path / _JOURNAL, journal)


def training_directory(output: Path) -> Path:
    """Where the trainings of a run leave their checkpoints."""
    return working_directory(located(output)) / "training"


def written_before(output: Path) -> int:
    """Bytes of weights that an unfinished run for an output left; one that goes on with it has them already."""
    path = working_directory(located(output))
    return bytes_of_tensors(path / CHECKPOINT) + bytes_of_tensors(path / SHARDS)


@contextmanager
def work_directory(output: Path, run: Mapping[str, str], *, resume: bool, overwrite: bool) -> Iterator[WorkDirectory]:
    """The working directory of a run, held against other runs; at the end its checkpoint becomes ``output``.

    On an error or a signal it stays once a block, or an epoch of training, is finished, and the error says how to go
    on; before, it is removed.

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
    output = located(output)
    with writing(output), held(output, take_over=resume or overwrite) as path:
        recover(path, output)
        check_output(output, overwrite)
        _prepare(path, output, run, resume, overwrite)
        sign(path)
        work = WorkDirectory(path)
        try:
            yield work
        except BaseException as error:
            _keep_or_remove(work, error)
            raise
        put_in_place(path, output, overwrite)


def tidy_up(output: Path, run: Mapping[str, str]) -> bool:
    """Finish a run that was stopped after its output had come into place; whether there was one that was this.

    Raises:
        OutputError: It was a run of something else.
    """
    output = located(output)
    if not is_put_in_place(output):
        return False
    with held(output, take_over=True) as path:
        known = (path / RUN_NAME).exists()
        _refuse_changes(path, run)
        remove(path, RUN_NAME)
    return known


def _keep_or_remove(work: WorkDirectory, error: BaseException) -> None:
    try:
        done = work.journal().get("blocks_done", 0)
    except OutputError:  # damaged, which is what the error says
        return
    epochs = any((work.path / "training").glob("*.pt"))
    if isinstance(error, OutputError) and str(error).endswith(ANEW):
        return  # what is kept cannot be gone on with
    if done:
        error.add_note(f"{counted(done, 'finished block')} kept in {work.path}: give --resume to go on from there.")
    elif epochs:
        error.add_note(f"What was trained is kept in {work.path}: give --resume to go on after the last whole epoch.")
    else:
        remove(work.path, RUN_NAME)


def _prepare(path: Path, output: Path, run: Mapping[str, str], resume: bool, overwrite: bool) -> None:
    found = path / RUN_NAME
    if found.exists() and not resume:
        if not overwrite:
            raise unfinished(path, output)
        _empty(path)
    if not found.exists() or not (path / CHECKPOINT).is_dir():  # nothing was begun, or nothing is left to go on with
        _empty(path)
        (path / CHECKPOINT).mkdir()
        _write(found, run)
        return
    _refuse_changes(path, run)


def _refuse_changes(path: Path, run: Mapping[str, str]) -> None:
    before = _read(path / RUN_NAME)
    changed = [name for name in run if before and before.get(name) != run[name]]
    if changed:
        raise OutputError(
            f"The unfinished run in {path} was made with another {' and another '.join(changed)}, so it cannot be gone "
            f"on with. Restore that to go on. {ANEW}"
        )


def _empty(path: Path) -> None:
    (path / RUN_NAME).unlink(missing_ok=True)  # first: without it the rest counts for nothing
    sync_directory(path)
    clear(path)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, dump_json({"sha256": _sha256(content), "content": content}).encode())


def _read(path: Path) -> dict[str, Any]:
    """What was written there; empty where nothing is."""
    try:
        text = path.read_text(encoding="utf-8")
        found = parse_json(text, str(path))
        content: dict[str, Any] = found["content"]
        intact = found["sha256"] == _sha256(content) and text == dump_json(found)  # 1E-05 is 1e-05 to a parser
    except FileNotFoundError:
        return {}
    except (DataError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        intact = False
    if not intact:
        raise OutputError(f"{path} is damaged: it is not what the unfinished run wrote. {ANEW}")
    return content


def _sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(dump_json(content).encode()).hexdigest()
