"""Train: what the training stages of a recipe do to a network in memory, before any other stage rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from goldstick import surgery
from goldstick.algorithms import TrainedQuantizer
from goldstick.core.relaxation import Relaxation
from goldstick.errors import RecipeError, StructureError
from goldstick.recipes.resolve import Resolution
from goldstick.recipes.run import Progress, SiteResult, decide
from goldstick.structure.network import Network, Site
from goldstick.training import TrainingRecord, TrainingTask, train


def train_stages(
    network: Network, resolution: Resolution, task: TrainingTask | None, progress: Progress
) -> tuple[dict[str, SiteResult], list[dict[str, Any]]]:
    """Carry out the stages that train, in their order and in place.

    Args:
        network: The network, in float.
        resolution: What its recipe means.
        task: What to train on; may be missing where nothing trains.
        progress: Told the steps.

    Returns:
        Site name → what became of it, for the sites these stages quantize; and the report's account of each stage.

    Raises:
        RecipeError: A stage trains, and there is nothing to train on.
        StructureError: A trained layer is tied to another.
        TrainingError: The training diverged.
    """
    results: dict[str, SiteResult] = {}
    accounts = []
    for index, stage in enumerate(resolution.training):
        if task is None:
            raise RecipeError(
                f"{stage.name} trains the network, and there is nothing to train on: give training=TrainingTask(...) "
                "to goldstick.apply."
            )
        description = f"{index + 1}-{stage.name}"
        stand_ins = _put_in(network, resolution, stage) if isinstance(stage, TrainedQuantizer) else {}
        record = train(network.model, task, stage.training, description=description, progress=progress)
        for name, (relaxation, weight) in stand_ins.items():
            assignment = resolution.assignments[name]
            surgery.stand_in(network, assignment.site, relaxation.layer)
            edit, error = decide(assignment.stage, assignment.site, weight, assignment.scheme, relaxation)
            surgery.apply(network, [edit])
            results[name] = SiteResult(assignment=assignment, error=error, notes=edit.notes)
        accounts.append({"stage": stage.name, **_words(record)})
    return results, accounts


def _put_in(network: Network, resolution: Resolution, stage: TrainedQuantizer) -> dict[str, tuple[Relaxation, Tensor]]:
    """Put a stage's stand-ins in the places of its layers; site name → the stand-in and the weight as it was."""
    found: dict[str, tuple[Relaxation, Tensor]] = {}
    for site in network.sites:
        assignment = resolution.assignments.get(site.name)
        if assignment is None or assignment.stage is not stage:
            continue
        _refuse_shared(network, site)
        layer, weight = network.module(site), network.weight(site).clone()
        found[site.name] = (stage.relax(site, layer, assignment.scheme), weight)
    for name, (relaxation, _) in found.items():
        surgery.stand_in(network, network.by_name[name], relaxation)
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
