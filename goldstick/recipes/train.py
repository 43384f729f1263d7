"""Train: what the training stages of a recipe do to a network in memory, before any other stage rounds."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter
from torch import Tensor, nn

from goldstick import surgery
from goldstick.algorithms import SCOP, Stage, TrainedQuantizer
from goldstick.core.edits import Prune
from goldstick.core.progress import Progress
from goldstick.core.trainable_wrapper import TrainableWrapper
from goldstick.core.training import TrainingOptions
from goldstick.errors import RecipeError, StructureError
from goldstick.recipes.prune import prune
from goldstick.recipes.resolve import Resolution, resolve
from goldstick.recipes.run import SiteResult, decide
from goldstick.structure.network import Network, Site
from goldstick.training import TrainingRecord, TrainingTask, distilled, train
from goldstick.training.checkpoint import digest_of
from goldstick.training.float_weights import in_float32


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What the training stages did.

    Attributes:
        network: The network as it is now.
        resolution: What the recipe means for it.
        results: Site name → what became of it, for the sites these stages quantize.
        accounts: The report's account of each training.
        pruning: The report's account of each stage that prunes.
        edits: What was cut, in this order.
    """

    network: Network
    resolution: Resolution
    results: dict[str, SiteResult]
    accounts: list[dict[str, Any]]
    pruning: list[dict[str, Any]]
    edits: tuple[Prune, ...]


def train_stages(network: Network, resolution: Resolution, task: TrainingTask | None, progress: Progress) -> Trained:
    """Carry out the stages that train, in their order and in place.

    Args:
        network: The network, in float.
        resolution: What its recipe means.
        task: What to train on; may be missing where nothing trains.
        progress: Told the steps.

    Raises:
        RecipeError: A stage trains, and there is nothing to train on; or the rest of the recipe is illegal for what
            pruning has left.
        StructureError: A trained layer is tied to another; no channel can be pruned.
        TrainingError: The training diverged.
    """
    results: dict[str, SiteResult] = {}
    accounts, pruning, edits = [], [], []
    teacher = copy.deepcopy(network.model) if any(stage.training.distill for stage in resolution.training) else None
    for index, stage in enumerate(resolution.training):
        if task is None:
            raise RecipeError(
                f"{stage.name} trains the network, and there is nothing to train on: give training=TrainingTask(...) "
                "to goldstick.apply, or data (--dataset)."
            )
        description = f"{index + 1}-{stage.name}"
        own_task = _of_stage(_taught(task, stage.training, teacher), stage)
        if isinstance(stage, SCOP):
            with in_float32(network.model):
                pruned = prune(network, stage, own_task, description, progress)
            network, resolution = pruned.network, resolve(resolution.stages, pruned.network)
            pruning.append(pruned.account)
            edits.append(pruned.edit)
            if pruned.record is not None:
                accounts.append({"stage": stage.name, **_words(pruned.record)})
            continue
        wrappers = _put_in(network, resolution, stage) if isinstance(stage, TrainedQuantizer) else {}
        with in_float32(network.model):  # what is searched is rounded to the dtype of the result all the same
            record = train(network.model, own_task, stage.training, description=description, progress=progress)
        for name, (wrapper, weight) in wrappers.items():
            assignment = resolution.assignments[name]
            surgery.replace_module(network, assignment.site, wrapper.layer)
            edit, error = decide(assignment.stage, assignment.site, weight, assignment.scheme, wrapper)
            surgery.apply(network, [edit])
            results[name] = SiteResult(assignment=assignment, error=error, notes=edit.notes)
        accounts.append({"stage": stage.name, **_words(record)})
    return Trained(
        network=network,
        resolution=resolution,
        results=results,
        accounts=accounts,
        pruning=pruning,
        edits=tuple(edits),
    )


def _of_stage(task: TrainingTask, stage: Stage) -> TrainingTask:
    """The task with the stage and all its options, so that no checkpoint of another stage is taken for its own."""
    options = TypeAdapter(type(stage)).dump_python(stage, mode="json")
    return replace(task, identity=json.dumps([task.identity, stage.name, options], sort_keys=True))


def _taught(task: TrainingTask, options: TrainingOptions, teacher: nn.Module | None) -> TrainingTask:
    """The task with what the teacher adds to its loss."""
    if teacher is None or not options.distill:
        return task
    if task.train is not None:
        raise RecipeError("training.distill is for the loop, and TrainingTask(train=...) stands in its place.")
    loss = distilled(task.loss, teacher, options.distill, options.distill_temperature)
    return replace(
        task, loss=loss, identity=f"{task.identity} {digest_of(teacher)}" if task.directory else task.identity
    )


def _put_in(
    network: Network, resolution: Resolution, stage: TrainedQuantizer
) -> dict[str, tuple[TrainableWrapper, Tensor]]:
    """Put a stage's stand-ins in the places of its layers; site name → the stand-in and the weight as it was."""
    found: dict[str, tuple[TrainableWrapper, Tensor]] = {}
    for site in network.sites:
        assignment = resolution.assignments.get(site.name)
        if assignment is None or assignment.stage is not stage:
            continue
        _refuse_shared(network, site)
        layer, weight = network.module(site), network.weight(site).clone()
        found[site.name] = (stage.wrap(site, layer, assignment.scheme), weight)
    for name, (wrapper, _) in found.items():
        surgery.replace_module(network, network.by_name[name], wrapper)
    return found


def _refuse_shared(network: Network, site: Site) -> None:
    tied = network.tied()
    if site.parameter_name in {*tied, *tied.values()}:
        raise StructureError(
            f"{site.name} shares its weight with another layer, which would not learn with it; exclude it."
        )


def _words(record: TrainingRecord) -> Mapping[str, Any]:
    return {
        "steps": record.steps,
        "losses": list(record.losses),
        "scores": list(record.scores),
        "kept_epoch": record.kept_epoch,
    }
