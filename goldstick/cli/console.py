"""What commands print: tables on a terminal, plain lines elsewhere, one JSON object with ``--json``."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from goldstick.cli.several import prints
from goldstick.cli.streams import says_utf8

if TYPE_CHECKING:
    from rich.console import Console

    from goldstick.core.progress import Progress


def console() -> Console:
    """The console for results, on standard output."""
    from rich.console import Console

    return Console(soft_wrap=not sys.stdout.isatty(), no_color="NO_COLOR" in os.environ or None)


def print_json(value: Any) -> None:
    """One JSON object on standard output, with escapes where that does not take every sign."""
    from goldstick.core.json_files import dump_json

    text = dump_json(value)
    click.echo((text if says_utf8() else json.dumps(json.loads(text), indent=1)).rstrip("\n"))


@contextmanager
def progress_bar(shown: bool) -> Iterator[Progress]:
    """A progress callback: bars on a terminal, a line for each stage elsewhere; nothing where not ``shown``, and of
    several processes for the first alone.

    Where not shown, standard output is for one JSON object: what a task of the user's or a library prints goes to
    standard error.
    """
    if not shown or not prints():
        with redirect_stdout(sys.stderr):
            yield lambda description, done, total: None
    elif sys.stderr.isatty():
        yield from _bars()
    else:
        yield _lines()


def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(description: str, done: int, total: int) -> None:
            job = description.partition(" ")[0]  # what follows says what the job is at
            if job not in tasks:
                tasks[job] = bars.add_task(description, total=total)
            bars.update(tasks[job], completed=done, total=total, description=description)

        yield advance


def _lines() -> Progress:
    last: list[str] = []

    def advance(description: str, done: int, total: int) -> None:
        if last != [description]:
            last[:] = [description]
            place = f" [{done}/{total}]" if done else f" ({total})" if total > 1 else ""
            click.echo(description + place, err=True)

    return advance


def finite(_: click.Context, __: click.Parameter, value: float) -> float:
    """A number that is neither NaN nor infinite."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number to compare with")
    return value


def finite_or_none(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """The same of a number that need not be given."""
    return None if value is None else finite(context, parameter, value)


def split_names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """``a,b`` as ("a", "b")."""
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise click.BadParameter("name at least one")
    return names
