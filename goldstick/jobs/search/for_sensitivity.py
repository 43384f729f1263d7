"""A recipe for a size from what ``goldstick sensitivity`` is asked for: the search over widths or schemes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from goldstick.algorithms import RTN, Quantizer
from goldstick.algorithms.gptq import GPTQ
from goldstick.checkpoint.gguf.directory import checkpoint_directory
from goldstick.core.mixture import MIXTURES
from goldstick.core.progress import Progress, quiet
from goldstick.core.scheme import Scheme
from goldstick.errors import RecipeError
from goldstick.formats.native import NATIVE
from goldstick.jobs.load.find_model import find_model
from goldstick.jobs.plan.plan import Plan, make_plan
from goldstick.jobs.search.ask import search
from goldstick.jobs.search.runtimes import RUNTIMES
from goldstick.jobs.sensitivity.choices import in_order
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.recipe import Export, Recipe
from goldstick.report.sensitivity import Choice, LayerSensitivity, Sensitivity

_SEARCHED = RUNTIMES["goldstick"]
#: What a stage says of which layers it rounds, and to what.
_OF_LAYERS = ("targets", "scheme", "unrecognised", "group_size_mismatch")


def sensitivity_for_size(
    model: str | Path,
    recipe: Recipe,
    tried: Sequence[Choice],
    text: Calibration,
    asked: Mapping[str, Any],
    *,
    data_dir: str | Path | None = None,
    held_out_rows: int = 32,
    progress: Progress = quiet,
) -> tuple[Sensitivity, Recipe]:
    """What rounding each layer alone costs, all measured by the search, and the recipe that it finds for a size.

    Args:
        model: As :func:`goldstick.search` takes it.
        recipe: Names the layers and their grid; it has one stage, ``rtn`` or ``gptq``.
        tried: The bits of the recipe's grid, or the schemes, to choose among.
        text: The rows to search on.
        asked: ``size`` or ``share``, as :func:`goldstick.search` takes them.
        data_dir: Where sets of text known by name lie.
        held_out_rows: How many rows judge exchanges, and as many the result.
        progress: Told what is done.

    Raises:
        RecipeError: The recipe has other stages, options or keys that a search does not take, or names another format
            than the native one; its grid is none of whole numbers, or its groups do not divide a layer's inputs.
        UsageError, DataError, SourceError: As :func:`goldstick.search` has them.
    """
    _refuse_precision(recipe)
    stage = _only_stage(recipe)
    _refuse_another_format(recipe)
    grids = {choice: _label(stage, choice) for choice in in_order(tried)}
    _refuse_other_options(stage)
    with checkpoint_directory(find_model(model)) as directory:
        plan = make_plan(directory, recipe)
    if any(isinstance(choice, int) for choice in grids):
        _refuse_other_groups(_scheme(stage), plan)
    left = [site.name for site in plan.network.sites if site.name not in plan.resolution.assignments]
    found = search(
        model, **asked, schemes=tuple(grids.values()), exclude=left, effort="best",
        method="gptq" if isinstance(stage, GPTQ) else "rtn", dataset=text.dataset, samples=text.samples,
        seq_len=text.seq_len, seed=text.seed, held_out_rows=held_out_rows, data_dir=data_dir,
        calibration=recipe.calibration.model_dump(exclude={"dataset"}, exclude_unset=True), progress=progress,
    )  # fmt: skip
    chosen = found.model_copy(update={"evaluate": recipe.evaluate})
    return _sensitivity(str(model), found.search, grids), chosen


def _only_stage(recipe: Recipe) -> RTN | GPTQ:
    stage = recipe.stages[0]
    if len(recipe.stages) != 1 or not isinstance(stage, RTN | GPTQ):
        raise RecipeError("A recipe for a size is found for one stage that is rtn or gptq, such as gptq-w4a16-g128.")
    return stage


def _refuse_precision(recipe: Recipe) -> None:
    if recipe.sensitivity:
        raise RecipeError(
            "The recipe has precision:, which chooses each layer's bits by a file, and a search for a size "
            "chooses them by what it measures: leave precision out, or leave --recipe-for-size out."
        )


def _refuse_another_format(recipe: Recipe) -> None:
    named = recipe.export.format
    if named not in (Export().format, NATIVE.name):
        raise RecipeError(
            f"A recipe for a size is found for the format {NATIVE.name}, whose layers take other bytes than those of "
            f"{named}. Leave export out, or search for what runs {named}: 'goldstick search MODEL --for RUNTIME'."
        )
    if recipe.export.max_shard_size is not None:
        raise RecipeError(
            "The recipe has export.max_shard_size, and a search for a size counts the headers of files of the usual "
            "size: leave max_shard_size out."
        )


def _refuse_other_options(stage: RTN | GPTQ) -> None:
    """A search rounds in its own way, and would pass over what else a recipe says of it."""
    search = _SEARCHED.data_search if isinstance(stage, GPTQ) else _SEARCHED.search
    searched: Quantizer = dataclasses.replace(type(stage)(), range_search=search)  # type: ignore[arg-type]
    for field in dataclasses.fields(stage):
        given, own = getattr(stage, field.name), getattr(searched, field.name)
        if field.name not in _OF_LAYERS and given != own:
            remedy = f"say {field.name}: {own}" if isinstance(own, str | int | float) else f"leave {field.name} out"
            raise RecipeError(
                f"The {stage.name} of this recipe has {field.name}: {given}, which a search for a size does not take: "
                f"{remedy}."
            )


def _refuse_other_groups(scheme: Scheme, plan: Plan) -> None:
    for name, found in plan.resolution.assignments.items():
        if found.scheme.weight.group_size != scheme.weight.group_size:
            raise RecipeError(
                f"{name} has {found.site.in_features} inputs, which groups of {scheme.weight.group_size} do not "
                "divide, and a search makes no others: give a group size that divides them, or leave such layers float "
                "by --group-size-mismatch skip."
            )


def _label(stage: Quantizer, choice: Choice) -> str:
    if isinstance(choice, str):
        if choice in MIXTURES:
            raise RecipeError(f"{choice} is a whole mixture; a search chooses among schemes of layers, such as q4_k.")
        return Scheme.parse(choice).label
    scheme = _scheme(stage)
    if not scheme.weight.plain or scheme.activation:
        raise RecipeError(f"It tries integer widths of weights alone, not {scheme.label}; give one such as w4a16-g128.")
    return dataclasses.replace(scheme, weight=dataclasses.replace(scheme.weight, bits=choice)).label


def _scheme(stage: Quantizer) -> Scheme:
    return Scheme.parse(stage.scheme) if isinstance(stage.scheme, str) else stage.scheme


def _sensitivity(model: str, record: Mapping[str, Any], grids: Mapping[Choice, str]) -> Sensitivity:
    grid = Scheme.parse(next(iter(grids.values()))).weight
    layers = []
    for group in record["groups"]:
        known = {one["scheme"]: one for one in group["candidates"]}
        if all(label in known for label in grids.values()):
            layers.append(
                LayerSensitivity(
                    name=group["name"],
                    shape=tuple(group["shape"]),
                    elements=group["weights"],
                    kl={choice: known[label]["measured"] for choice, label in grids.items()},
                    bits_per_weight={
                        choice: 8 * known[label]["bytes"] / group["weights"] for choice, label in grids.items()
                    },
                )
            )
    if not layers:
        raise RecipeError(f"No layer can become each of {', '.join(grids.values())}; give another group size.")
    return Sensitivity(
        model=model,
        inputs=record["text"],
        tokens=record["tokens"],
        grid={
            "granularity": grid.granularity,
            "group_size": grid.group_size,
            "symmetric": grid.symmetric,
            "range_search": "mse",
        },
        widths=tuple(grids),
        layers=tuple(layers),
    )
