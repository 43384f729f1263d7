"""Staging: an output directory appears whole, by one rename, or not at all; what others put there stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from goldstick.checkpoint.unused_tensors import MANIFEST_NAME as MANIFEST_NAME
from goldstick.checkpoint.working_directory import (
    CHECKPOINT,
    FORMER,
    clear,
    files_below,
    held,
    is_working_directory,
    remove,
    sign,
    working_directory,
)
from goldstick.core.json_files import parse_json, read_text
from goldstick.core.rename import rename_noreplace
from goldstick.core.signals import uninterrupted
from goldstick.core.utf8_paths import require_utf8
from goldstick.core.whole_file import sync_directory
from goldstick.errors import DataError, OutputError
from goldstick.report.file_names import FILE_NAME as REPORT_NAME
from goldstick.report.file_names import PAGE_NAME, SEARCH_PAGE

#: What a run that can be resumed writes first into its working directory, and removes last.
RUN_NAME = "run.json"

#: Bytes of a name that leave room, among the 255 of most file systems, for what a directory is called while it grows.
_LONGEST_NAME = 220

#: The way out of an unfinished run that cannot be resumed.
ANEW = "Give --overwrite, without --resume, to start anew."


def located(output: Path) -> Path:
    """An output by its own name in its resolved parent, also where it is given as ``.`` or ``a/..``."""
    return output.resolve() if output.name in ("", "..") else output.parent.resolve() / output.name


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
    output = located(output)
    require_utf8(output)
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
        _refuse_foreign(output)
    parent = output.parent
    if parent.exists() and not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise OutputError(f"Nothing can be written in {parent}. Choose another -o.")


def refuse_overlap(output: Path, inputs: Mapping[str, str | Path | None]) -> None:
    """Refuse an output directory that is, or holds, what the run reads, or that lies in the source.

    Args:
        output: The directory to make.
        inputs: What is read, by what the user calls it; ``source`` is a checkpoint. ``None``: nothing.

    Raises:
        OutputError: They overlap.
    """
    place = located(output)
    for name, path in inputs.items():
        if path is None or not Path(path).exists():  # a name, such as a data set's
            continue
        found = Path(path).resolve()
        if found.is_relative_to(place):
            raise OutputError(
                f"The output {output} is or holds the {name} {path}, which would be lost. Choose another -o."
            )
        if name == "source" and place.is_relative_to(found):
            raise OutputError(f"The output {output} lies in the {name} {path}. Choose an -o outside it.")


def refuse_checkpoint(directory: Path) -> None:
    """Refuse to write another report where a checkpoint has its own.

    Raises:
        OutputError: The directory is a checkpoint that goldstick wrote.
    """
    if (directory / MANIFEST_NAME).is_file():
        raise OutputError(
            f"{directory} is a checkpoint, whose own report.json and report.html would be lost. Name another directory."
        )


def is_put_in_place(output: Path) -> bool:
    """Whether a run was stopped after ``output`` had come into place, while it removed what was left."""
    work = working_directory(located(output))
    return (output / MANIFEST_NAME).is_file() and is_working_directory(work) and not (work / CHECKPOINT).exists()


def _has_no_unfinished_run(output: Path) -> bool:
    return (output / MANIFEST_NAME).is_file() and not is_working_directory(working_directory(located(output)))


@contextmanager
def staged(output: Path, overwrite: bool) -> Iterator[Path]:
    """A directory that becomes ``output`` at the end, or vanishes on an error.

    Raises:
        OutputError: See :func:`check_output`; also where writing fails, and where another run works on ``output`` or
            left what it can resume.
    """
    output = located(output)
    check_output(output, overwrite)
    with writing(output), held(output, take_over=overwrite) as work:
        recover(work, output)
        if (work / RUN_NAME).exists() and not overwrite:
            raise unfinished(work, output)
        check_output(output, overwrite)
        clear(work)
        sign(work)
        (work / CHECKPOINT).mkdir()
        try:
            yield work / CHECKPOINT
        except BaseException:
            remove(work)
            raise
        put_in_place(work, output, overwrite)


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Let what the file system refuses be an error that names the output.

    Raises:
        OutputError: A file could not be written.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"Writing {output} failed: {error.strerror or error}. Free space or choose another -o; nothing that "
            f"existed before was touched. {' '.join(getattr(error, '__notes__', []))}".rstrip()
        ) from error


def unfinished(work: Path, output: Path) -> OutputError:
    """The error of a run that would throw away what another can be resumed from."""
    return OutputError(
        f"An unfinished run for {output} lies in {work}. Give --resume to go on with it, or --overwrite to start anew."
    )


def recover(work: Path, output: Path) -> None:
    """Put back the output that a killed run had moved away to replace it; where it was replaced, remove it."""
    former = work / FORMER
    if not former.is_dir():
        return
    if (work / CHECKPOINT).exists():
        _put_back(former, output)
    else:  # it has become the output
        shutil.rmtree(former)


def put_in_place(work: Path, output: Path, overwrite: bool) -> None:
    """Let the checkpoint in a working directory become the output, and remove the rest.

    An interrupt waits for it. What cannot be removed when the output is in place stays, and is removed by the next run.

    Raises:
        OutputError: Something else lies at ``output`` that may not be replaced. The checkpoint then gets a name beside
            it, which the message says.
    """
    checkpoint, former = work / CHECKPOINT, work / FORMER
    try:
        with uninterrupted():
            sync_directory(checkpoint)
            if overwrite and os.path.lexists(output):
                output.rename(former)
                if not _is_own(former):
                    _put_back(former, output)
            _take_place(checkpoint, output, former)
            with suppress(OSError):
                sync_directory(output.parent)
                remove(work, RUN_NAME)
    except OSError as error:
        error.add_note(f"The finished checkpoint is in {checkpoint}.")
        raise
    except (KeyboardInterrupt, SystemExit) as error:
        error.add_note(f"{output} is finished and in its place.")
        raise


def _take_place(checkpoint: Path, output: Path, former: Path) -> None:
    try:
        rename_noreplace(checkpoint, output)
    except FileExistsError:
        aside = _set_aside(checkpoint, output)
        if os.path.lexists(former):
            _set_aside(former, output)
        remove(checkpoint.parent, RUN_NAME)
        raise OutputError(
            f"Something else came to lie at {output} during the run and was left alone; the finished checkpoint is in "
            f"{aside}."
        ) from None


def foreign_files(directory: Path) -> list[str]:
    """What lies in a checkpoint and was not written there by goldstick, as far as its manifest says.

    Raises:
        OutputError: It holds no manifest that can be read.
    """
    path = directory / MANIFEST_NAME
    try:
        named = parse_json(read_text(path), str(path))["files"]
        own = {*named, MANIFEST_NAME, REPORT_NAME, PAGE_NAME, SEARCH_PAGE}
    except (DataError, KeyError, TypeError) as error:
        raise OutputError(
            f"The output {directory} holds no {MANIFEST_NAME} that can be read, so goldstick did not write it and will "
            "not overwrite it. Choose another -o, or remove it yourself."
        ) from error
    return sorted({name.partition("/")[0] for name in files_below(directory) if name not in own})


def _refuse_foreign(output: Path) -> None:
    foreign = foreign_files(output)
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise OutputError(
            f"The output {output} holds what goldstick did not write there: {', '.join(foreign[:3])}{more}. Move that "
            "away, or choose another -o."
        )


def _is_own(path: Path) -> bool:
    try:
        return path.is_dir() and not path.is_symlink() and not foreign_files(path)
    except OutputError:
        return False


def _put_back(path: Path, output: Path) -> None:
    try:
        rename_noreplace(path, output)
    except FileExistsError:
        _set_aside(path, output)


def _set_aside(path: Path, output: Path) -> Path:
    """Give a directory the first free name of ``output.1``, ``output.2``, …, and return it."""
    for number in count(1):
        aside = output.with_name(f"{output.name}.{number}")
        with suppress(FileExistsError):
            rename_noreplace(path, aside)
            return aside
    raise AssertionError("numbers do not end")


def write_file(path: Path, data: bytes) -> None:
    """Write a small file and sync it to disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
