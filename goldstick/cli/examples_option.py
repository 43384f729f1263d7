"""The options that say what the answers of two models are shown to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

DEFAULT = 3


def EXAMPLES(command: Any) -> Any:  # noqa: N802
    """Give a command these options."""
    options: list[Any] = [
        click.option("--examples", type=click.IntRange(0),
                     help=f"Items of each task whose answers by both the report shows; 0: none.  [default: {DEFAULT}]"),
        click.option("--prompt", "prompts", metavar="TEXT", multiple=True,
                     help="What both models go on from for the report, in the place of items; may be repeated."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def asked_examples(examples: int | None, prompts: tuple[str, ...]) -> int | tuple[str, ...]:
    """How many items, or the prompts.

    Raises:
        UsageError: Both are given, or a prompt is empty.
    """
    if prompts and examples is not None:
        raise click.UsageError("--prompt is in the place of the items that --examples counts; give one of them")
    if not all(prompt.strip() for prompt in prompts):
        raise click.UsageError("--prompt: there is nothing to go on from")
    return prompts or (DEFAULT if examples is None else examples)


def echo_examples(found: Sequence[Mapping[str, Any]], *, whole: bool) -> None:
    """Print how many answers are the same, after all of them where ``whole``."""
    from goldstick.report.examples_view import examples_lines, examples_words

    click.echo("\n".join(examples_lines(found)) if whole else f"examples: {examples_words(found)}")
