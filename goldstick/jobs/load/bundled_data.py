"""The data that come with the reference model, where a recipe for it names none."""

from __future__ import annotations

from pathlib import Path

from goldstick.jobs.load.find_model import REFERENCE
from goldstick.recipes.recipe import Recipe


def with_bundled_data(recipe: Recipe, model: str | Path, data_dir: str | Path | None) -> Recipe:
    """The recipe, calibrated on the bundled text where the model is ``reference`` and nobody says on what.

    Where nobody says how many samples, they are as many as the text has.
    """
    settings = recipe.calibration
    given = settings.model_fields_set
    if str(model) != REFERENCE or str(data_dir or REFERENCE) != REFERENCE or "dataset" in given:
        return recipe
    short = {} if "samples" in given else {"allow_short": True}
    return recipe.model_copy(update={"calibration": settings.model_copy(update={"dataset": REFERENCE, **short})})
