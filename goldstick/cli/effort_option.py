"""The option that says how much time a recipe, or a search, may take to lose less."""

from __future__ import annotations

from typing import Any

import click


def EFFORT(command: Any) -> Any:  # noqa: N802
    """Give a command this option."""
    option = click.option(
        "--effort",
        type=click.Choice(["fast", "default", "best"]),
        default="default",
        show_default=True,
        help="What calibrated recipes of words do: their words alone; more, judged on rows held out; learning, too. "
        "A search: gradients alone; measured near the decision; everything measured.",
    )
    return option(command)
