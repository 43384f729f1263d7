"""Recipes: what to do to a network, as data; and doing it to a network in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from goldstick.recipes.recipe import Recipe

__all__ = ["Recipe"]


def __getattr__(name: str) -> Any:
    """The class :class:`Recipe`, imported when it is asked for: what lists words needs no torch."""
    if name != "Recipe":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from goldstick.recipes.recipe import Recipe

    globals()[name] = Recipe
    return Recipe
