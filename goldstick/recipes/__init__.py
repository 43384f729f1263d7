"""Recipes: what to do to a network, as data; and doing it to a network in memory."""

from goldstick.recipes.recipe import Recipe

__all__ = ["Recipe"]
