"""A search of a model without some of its channels, where that loses less than fewer bits for all of them."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import nn

from goldstick.algorithms import SCOP
from goldstick.checkpoint.shards import write_entries
from goldstick.checkpoint.sidecars import sidecars_of
from goldstick.core.json_files import dump_json
from goldstick.core.progress import quiet
from goldstick.errors import UsageError
from goldstick.formats.native import NATIVE
from goldstick.hf.model_in_memory import config_of, names_of
from goldstick.jobs.load.load import load_float
from goldstick.jobs.save.pieces import float_tensors, save_entries
from goldstick.jobs.save.result import apply_recipe
from goldstick.jobs.search.bound import upper_bound
from goldstick.jobs.search.channels import Prospect, channels_kept, find_prospects
from goldstick.jobs.search.layers import Layers, find_layers
from goldstick.jobs.search.possible import refuse_size
from goldstick.jobs.search.search import Search
from goldstick.jobs.search.settings import SearchSettings
from goldstick.jobs.search.shortage import recipe_data
from goldstick.jobs.search.target import Found, Target
from goldstick.recipes.recipe import Export, Recipe
from goldstick.recipes.taylor_scores import taylor_scores
from goldstick.structure.network import Network
from goldstick.structure.pruning.prunable import Prunable
from goldstick.structure.targets import Targets
from goldstick.training import TrainingTask
from goldstick.training.loop import seeded


def refuse_pruning(layers: Layers, target: Target, settings: SearchSettings) -> None:
    """Refuse what channels cannot go for; UsageError, which says what to do."""
    if target.max_loss is not None:
        raise UsageError("Channels go for a size. Ask for a size, bits a weight or a share, or do not prune.")
    if layers.runtime.format != NATIVE.name:
        raise UsageError(
            f"Layers that each keep another number of channels are held by the native format alone, not by "
            f"{layers.runtime.format}. Search for the runtime goldstick, or do not prune."
        )
    if not settings.ranks.alone:
        raise UsageError("Channels are searched for by one process. Run the search without torchrun, or do not prune.")
    size = target.bytes_of(layers)
    if size >= layers.source:
        refuse_size(layers, size)


def search_pruned(search: Search, groups: Sequence[Prunable]) -> Found:
    """What loses less in as many bytes: what a search finds, or a search of the model without some channels.

    Channels go where that loses less with 95 % confidence, row by row, and where nothing else is small enough.

    Args:
        search: The search of the whole model, in memory as a whole. It may find what is too large, where nothing
            smaller can be made of it.
        groups: The channels that can go.

    Raises:
        UsageError: Nothing is so small, also without channels.
    """
    size, layers, found = search.target.bytes_of(search.layers), search.layers, search.run()
    prospects = _prospects(search, groups)
    whole, alone = _losses(search, found.recipe), search.whole(_chosen(found))
    taken = sum(group.nbytes[_chosen(found)[group.name]] for group in layers.groups)
    left = fmean(whole) / alone if alone > 0 else 1.0
    kept = channels_kept(search, prospects, size - (found.nbytes - taken), left)
    account: dict[str, Any] = {"whole_model": {"bytes": found.nbytes, "kl": fmean(whole)}, "pruned": None}
    if kept:
        other = _without(search, kept)
        pruned = _losses(search, other.recipe)
        account["pruned"] = {"bytes": other.nbytes, "kl": fmean(pruned), "kept": kept}
        more = [one - beside for one, beside in zip(pruned, whole, strict=True)]
        if other.nbytes <= size and (found.nbytes > size or upper_bound(more, 0.95) < 0):
            of_the_whole = {key: found.record[key] for key in ("model", "uniform", "rival")}
            record = {**other.record, **of_the_whole, "pruning": account | _channels(prospects, kept)}
            return dataclasses.replace(other, record=record)
    refuse_size(layers, size)
    return dataclasses.replace(found, record=found.record | {"pruning": account | _channels(prospects, {})})


def _prospects(search: Search, groups: Sequence[Prunable]) -> list[Prospect]:
    model = search.searched.model
    search.progress("scoring channels", 0, 1)
    with seeded(SCOP().training.seed, model):  # as the recipe's stage will
        scores = taylor_scores(model, groups, _task(search, model))
    search.progress("scoring channels", 1, 1)
    return find_prospects(search, groups, scores)


def _without(search: Search, kept: Mapping[str, int]) -> Found:
    """What a search of the model with so many channels finds; its recipe cuts them first."""
    stage = SCOP(criterion="taylor", rate=None, keep=kept, targets=Targets(include=tuple(kept)))
    with _cut(search, stage) as (directory, model):
        layers = _layers_of_cut(search.layers, directory)
        found = Search(layers, search.target, search.settings, model, search, f"without {kept}").run()
    recipe = found.recipe.model_copy(update={"stages": (stage, *found.recipe.stages)})
    return dataclasses.replace(found, recipe=recipe)


def _channels(prospects: Sequence[Prospect], kept: Mapping[str, int]) -> dict[str, Any]:
    """The record's account of each layer's channels."""
    return {
        "channels": [
            {
                "name": one.group.name,
                "units": one.group.units,
                "kept": kept.get(one.group.name, one.group.units),
                "tried": [[count, loss] for count, loss in one.losses.items() if count < one.group.units],
            }
            for one in prospects
        ]
    }


def _chosen(found: Found) -> dict[str, str]:
    return {group["name"]: group["chosen"] for group in found.record["groups"]}


def _losses(search: Search, recipe: Recipe) -> list[float]:
    """KL, on each of the rows that exchanges are judged on, of the model that a recipe makes."""
    return search.losses_made(recipe, search.tuning, "kl")


def _task(search: Search, model: nn.Module) -> TrainingTask:
    """The data that the recipe's stage will score channels on."""
    settings = search.layers.calibration
    data = recipe_data(search.layers, settings, model, search.settings.data_dir)
    return TrainingTask(batches=data.training_batches(settings.training_batch))


@contextmanager
def _cut(search: Search, stage: SCOP) -> Iterator[tuple[Path, nn.Module]]:
    """A float checkpoint of the model without channels, for plans, and the model."""
    layers = search.layers
    model = load_float(layers.directory)
    recipe = Recipe(stages=(stage,), calibration=layers.calibration, export=Export(format=NATIVE.name))
    model = apply_recipe(model, recipe, inplace=True, training=_task(search, model)).model.eval()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        for name, path in sidecars_of(layers.directory).items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, directory / name)
        (directory / "config.json").write_text(dump_json(config_of(model) or {}), encoding="utf-8")
        floats = float_tensors(Network(model), names_of(model))
        write_entries(directory, save_entries([], floats, NATIVE), None, quiet)
        yield directory, model


def _layers_of_cut(layers: Layers, directory: Path) -> Layers:
    """The layers of a model without channels: what they may become now and might have before."""
    before = {group.name: group.nbytes for group in layers.groups}
    found = find_layers(
        directory, layers.runtime, method=layers.method, calibration=layers.calibration,
        schemes=tuple(dict.fromkeys(name for nbytes in before.values() for name in nbytes)),
        exclude=layers.exclude, effort=layers.effort, require_use=False,
    )  # fmt: skip
    groups = tuple(
        dataclasses.replace(
            group, nbytes={name: size for name, size in group.nbytes.items() if name in before[group.name]}
        )
        for group in found.groups
    )
    return dataclasses.replace(found, groups=groups, weights=layers.weights, source=layers.source)
