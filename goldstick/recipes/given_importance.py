"""A recipe with an importance matrix from a file in the place of calibration data."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from goldstick.algorithms import RTN, Stage
from goldstick.algorithms.column_importance import WITH_IMPORTANCE
from goldstick.errors import RecipeError
from goldstick.recipes.recipe import Recipe


def with_importance(recipe: Recipe, file: str | Path | None) -> Recipe:
    """The recipe whose stages that weight errors by inputs, and do nothing else with data, take a file.

    Args:
        recipe: The recipe.
        file: A GGUF file as llama.cpp's tools write it; the recipe stays as it is where ``None``.

    Raises:
        RecipeError: It has no such stage.
    """
    if file is None:
        return recipe

    def takes(stage: Stage) -> bool:
        return isinstance(stage, RTN) and stage.range_search in WITH_IMPORTANCE

    if not any(map(takes, recipe.stages)):
        raise RecipeError(
            "No stage of this recipe takes an importance matrix from a file: rtn does, with range_search imatrix or "
            "ggml-imatrix, as in the recipe imatrix-q4_k_m."
        )
    given: Any = {"importance": str(file)}
    stages = tuple(dataclasses.replace(stage, **given) if takes(stage) else stage for stage in recipe.stages)
    return recipe.model_copy(update={"stages": stages})
