"""The Python interface of planning alone: wiring, apart from what runs a plan, so that a plan imports little."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from goldstick.checkpoint.gguf.directory import checkpoint_directory
from goldstick.hf.example_inputs import as_inputs
from goldstick.jobs.doctor.runtimes import runtime_named
from goldstick.jobs.doctor.runtimes.planned import plan_for
from goldstick.jobs.load.bundled_data import with_bundled_data
from goldstick.jobs.load.calibration_inputs import require_calibration, require_tasks
from goldstick.jobs.load.find_model import data_directory, find_model
from goldstick.jobs.plan.plan import Plan
from goldstick.recipes.recipe import Recipe

RecipeLike = str | Path | Mapping[str, Any] | Recipe


def plan(
    model: str | Path, recipe: RecipeLike, *, inputs: Mapping[str, Tensor] | str | Path | None = None,
    data_dir: str | Path | None = None, runtime: str | None = None, tensor_parallel: int = 1,
) -> Plan:  # fmt: skip
    """What a recipe would do to a checkpoint, from its config and file headers alone.

    Args:
        model: As :func:`quantize` takes it.
        recipe: As :func:`quantize` takes it.
        inputs: Keyword arguments to try the model with, where goldstick cannot know any, or a file of them.
        data_dir: As :func:`quantize` takes it.
        runtime: A program that is to run the result: a format that it loads is taken, and what it refuses is refused.
        tensor_parallel: Over how many devices it is to split the layers.

    Raises:
        SourceError: The model cannot be read, or lacks the tokenizer that the run would need.
        RecipeError: The recipe is wrong, or illegal for this model.
        UsageError: There is no such runtime, or no rules of how it splits layers are known.
        FormatError: Its format cannot hold the result, or the runtime does not run it.
        DataError: The data that the run would need are missing.
    """
    wanted_by = runtime_named(runtime, tensor_parallel)
    wanted = with_bundled_data(Recipe.load(recipe), model, data_dir)
    with checkpoint_directory(find_model(model)) as directory:
        planned = plan_for(directory, wanted, as_inputs(inputs), wanted_by, tensor_parallel)
        require_calibration(wanted, directory, data_directory(data_dir, model))
    require_tasks(wanted.evaluate, data_directory(data_dir, model))
    return planned
