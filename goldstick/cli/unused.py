"""Notes of options that change nothing beside the others that were given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from goldstick.recipes.recipe import Recipe


def note_unused(
    recipe: Recipe,
    *,
    evaluates: bool,
    pushes: bool,
    limit: int | None,
    data_dir: str | None,
    private: bool,
    examples: bool = False,
) -> None:
    """Say on standard error which options of a quantization change nothing.

    Args:
        recipe: What is done.
        evaluates: Whether tasks are run before and after.
        pushes: Whether the result is uploaded.
        limit: The option of that name, as are those that follow.
    """
    from goldstick.recipes.needs_data import needs_data

    looks = needs_data(recipe.stages)
    if limit is not None and not evaluates:
        _note("--limit", "without --evaluate")
    if examples and not evaluates:
        _note("--examples or --prompt", "without --evaluate")
    if data_dir is not None and not (evaluates or looks):
        _note("--data-dir", "without --evaluate, since no stage of this recipe looks at data")
    note_private(private, pushes)


def note_private(private: bool, pushes: bool) -> None:
    """Say on standard error that nothing is uploaded that could be private."""
    if private and not pushes:
        _note("--private", "without --push-to-hub")


def _note(option: str, why: str) -> None:
    click.echo(f"note: {option} changes nothing {why}", err=True)
