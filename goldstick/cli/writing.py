"""What commands that let a model write have in common: their options, and what is typed or shown."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from goldstick.evaluation.language_model import LanguageModel

CHAT_TEMPLATE = click.option(
    "--chat-template",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="A Jinja template, if not the model's own.",
)
OPTIMIZE = click.option(
    "--optimize/--no-optimize", default=True, show_default=True, help="Rearrange a compressed MODEL for speed."
)


def sampling_options(temperature: float, seed: int | None) -> Callable[[Any], Any]:
    """``--temperature``, ``--top-p`` and ``--seed``, with these defaults."""
    options = (
        click.option(
            "--temperature",
            type=float,
            default=temperature,
            show_default=True,
            help="0 takes the likeliest token; above, tokens are drawn, up to 2.",
        ),
        click.option(
            "--top-p", type=float, default=1.0, show_default=True, help="Draw from the likeliest of this share."
        ),
        click.option(
            "--seed",
            type=int,
            default=seed,
            show_default=seed is not None,
            help="The same seed draws the same tokens." + (" By default any." if seed is None else ""),
        ),
    )

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def open_to_write(directory: Path, *, optimize: bool) -> LanguageModel:
    """A model that goes on from texts; what it leaves as it is or does not follow is said on stderr.

    Raises:
        GoldstickError: It cannot be loaded, or goes on from no text.
    """
    from goldstick.jobs.serve.open_model import open_model

    language_model, left = open_model(directory, optimize=optimize)
    for line in left:
        click.echo(line, err=True)
    _say_unfollowed(language_model.model)
    return language_model


def _say_unfollowed(model: object) -> None:
    """Name what a model's generation config asks for and is not done, but for what the command line says itself."""
    from goldstick.hf.generation_config import unfollowed_settings

    source, found = click.get_current_context().get_parameter_source, unfollowed_settings(model)
    for option, settings in (("temperature", ("do_sample", "temperature")), ("top_p", ("top_p",))):
        if source(option) is ParameterSource.COMMANDLINE:
            found = {name: value for name, value in found.items() if name not in settings}
    if found:
        named = ", ".join(f"{name}={str(value)[:40]}" for name, value in found.items())
        click.echo(
            f"note: generation_config.json asks for {named}, which is not followed: tokens are chosen by temperature "
            "and top_p as options or requests say",
            err=True,
        )


def require_text(text: str, where: str) -> str:
    """A text that was typed or read.

    Raises:
        BadParameter: Bytes that are no UTF-8, which Python reads as halves of characters.
    """
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise click.BadParameter("it is not UTF-8; give it in that encoding", param_hint=where)
    return text


def standard_input() -> TextIO:
    """Standard input as UTF-8, in which other bytes are halves of characters; empty where it is closed."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    return io.StringIO() if sys.stdin is None else sys.stdin
