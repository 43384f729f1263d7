"""The options of a search: what is asked for, and how it is looked for; of every command that searches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from goldstick.cli.memory_size import memory_size
from goldstick.cli.runtime_option import RUNTIME, TENSOR_PARALLEL


def share(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """``1%`` as 0.01; a plain number as it is."""
    if value is None:
        return None
    try:
        return float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no number; write 1% or 0.01") from None


def _schemes(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    if value is not None and not all(names := [name.strip() for name in value.split(",")]):
        raise click.BadParameter("a scheme has no name; write them like w4a16-g32,w8a16")
    return () if value is None else tuple(names)


_SIZES = [
    click.option("--size", metavar="SIZE", callback=memory_size, help="Bytes of the weight files at most: 4GB."),
    click.option("--bits", type=float, help="Bits of those files for each weight at most; headers and scales count."),
    click.option("--share", metavar="PERCENT", callback=share, help="Part of the model's size at most, such as 60%."),
]
_LOSSES = [
    click.option("--max-loss", metavar="LOSS", callback=share, help="The smallest model that loses no more: 1%."),
    click.option("--metric", type=click.Choice(["perplexity", "kl"]), default="perplexity", show_default=True,
                 help="What --max-loss is of: how much perplexity grows, or KL per token in nats."),
]  # fmt: skip
_CANDIDATES = [
    RUNTIME,
    TENSOR_PARALLEL,
    click.option("--schemes", metavar="LIST", callback=_schemes,
                 help="What a search chooses among instead: w4a16-g32,w8a16."),
]  # fmt: skip
_WAYS = [
    click.option("--method", type=click.Choice(["rtn", "gptq"]), default="gptq", show_default=True,
                 help="How layers are rounded that a search chose schemes for."),
    click.option("--prune", is_flag=True,
                 help="Let layers lose channels, too, where that loses less than fewer bits; with a size."),
    click.option("--held-out", metavar="PATH|NAME", help="The text of the rows that judge a search; else --dataset's."),
    click.option("--held-out-rows", type=click.IntRange(2), default=32, show_default=True, help="Rows that judge."),
]  # fmt: skip


def _decorator(options: list[Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


#: Which sizes are possible.
SIZE_OPTIONS = _decorator([*_SIZES, *_CANDIDATES])
#: A whole search, but for its text.
SEARCH_OPTIONS = _decorator([*_SIZES, *_LOSSES, *_CANDIDATES, *_WAYS])
#: What of them says what is asked for.
TARGETS = ("size", "bits", "share", "max_loss")
#: Names of all of them but ``--for``, which says something of a recipe that is given, too.
NAMES = (*TARGETS, "metric", "schemes", "method", "prune", "effort", "held_out", "held_out_rows")


def given(context: click.Context, *names: str | None) -> list[str]:
    """Those of the parameters that were given on the command line, as options are written."""
    source = click.core.ParameterSource.COMMANDLINE
    written = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    return [written[str(name)] for name in names if context.get_parameter_source(str(name)) is source]


def _state(file: Path) -> tuple[int, int] | None:
    """By what a file that grew is known."""
    if not file.is_file():
        return None
    found = file.stat()
    return found.st_mtime_ns, found.st_size


@contextmanager
def naming_the_journal(journal: Path) -> Iterator[None]:
    """Add to what ends a search early where the next one finds what was measured."""
    before = _state(journal)
    try:
        yield
    except BaseException as error:
        if _state(journal) not in (None, before):
            error.add_note(f"What was measured so far is in {journal}; the same command goes on with it.")
        raise
