"""A recipe as the text of its YAML file."""

from __future__ import annotations

import yaml

from goldstick.recipes.recipe import Recipe


def recipe_text(recipe: Recipe) -> str:
    """The YAML that :meth:`Recipe.load` reads it from; what has its default is left out."""
    return yaml.safe_dump(recipe.model_dump(mode="json", exclude_defaults=True), sort_keys=False, width=110)
