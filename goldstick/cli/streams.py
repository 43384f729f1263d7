"""Standard output and error: what cannot be written there is said once, and no work is lost for it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click

from goldstick.errors import OutputError


class _Descriptor(io.FileIO):
    """A standard stream. When it cannot be written that is raised once for the output, and never for the error."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self._lost = False

    def write(self, data: Any, /) -> int:
        if not self._lost:
            try:
                return super().write(data)
            except OSError as error:
                self._lost = True
                if self.fileno() == 1:
                    raise OutputError(f"Standard output cannot be written: {error.strerror}.") from error
        return len(data)  # there is nobody to tell; what is still to be flushed would only be refused again


def prepare_streams() -> None:
    """Let streams that are closed, full, or of few signs stand in nobody's way.

    A descriptor that is closed is taken up, since the next file to be opened would get it, and with it whatever a
    library prints. Signs that an encoding does not have are written as escapes.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # gets the lowest free number, which it is; to write there fails as before
    sys.stdout = _prepared(sys.stdout, 1)
    sys.stderr = _prepared(sys.stderr, 2)


def _prepared(stream: TextIO | None, number: int) -> TextIO:
    if stream is not None and (isinstance(_raw(stream), _Descriptor) or not _is(stream, number)):
        return stream
    if stream is not None:
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(number)),
        encoding=stream.encoding if stream is not None else "utf-8",
        errors="backslashreplace",
        line_buffering=number == 2 or (stream is not None and stream.isatty()),
    )


def _raw(stream: TextIO) -> Any:
    return getattr(getattr(stream, "buffer", None), "raw", None)


def _is(stream: TextIO, number: int) -> bool:
    try:
        return stream.fileno() == number
    except (OSError, ValueError):  # of a test, or closed by whoever called
        return False


def says_utf8() -> bool:
    """Whether standard output takes every sign."""
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "").replace("_", "") == "utf8"


@contextmanager
def showing(*places: Path | None) -> Iterator[None]:
    """Show a result that lies on disk, too: where that fails it is said on standard error, and nothing has failed.

    Args:
        places: Where it lies; where there is none, what fails is raised.
    """
    try:
        yield
    except Exception as error:  # of whatever kind: what is only shown may not count as a failure of the work
        found = [str(place) for place in places if place is not None]
        if not found:
            raise
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        click.echo(f"note: the result could not be shown ({reason}); see {' and '.join(found)}", err=True)
