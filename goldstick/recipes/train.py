"""Train: what the stages that act on the whole float network do to it in memory, before any other stage rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter
from torch import Tensor, nn

from goldstick import surgery
from goldstick.algorithms import SCOP, Stage, TrainedQuantizer
from goldstick.algorithms.stage import NetworkStage
from goldstick.core.edits import Edit, Prune
from goldstick.core.progress import Progress
from goldstick.core.references import deep_copy
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


@dataclass
class Trained:
    """What the stages that act on the whole float network have done: what each of them is given (``NetworkRun``).

    Attributes:
        network: The network as it is now.
        resolution: What the recipe means for it.
        task: What to train on.
        progress: Told the steps.
        teacher: The network as it came; ``None`` where no stage learns from it.
        results: Site name → what became of it, for the sites these stages quantize.
        accounts: The report's account of each training.
        pruning: The report's account of each stage that prunes.
        edits: What was cut, in this order.
        stage: The stage that acts.
        number: Which of these stages it is, from 1.
    """

    network: Network
    resolution: Resolution
    task: TrainingTask | None
    progress: Progress
    teacher: nn.Module | None = None
    results: dict[str, SiteResult] = field(default_factory=dict)
    accounts: list[dict[str, Any]] = field(default_factory=list)
    pruning: list[dict[str, Any]] = field(default_factory=list)
    edits: tuple[Prune, ...] = ()
    stage: NetworkStage | None = None
    number: int = 0

    def act(self, stage: NetworkStage) -> None:
        """Let the next stage act."""
        if stage.trains and self.task is None:
            raise RecipeError(
                f"{stage.name} trains the network, and there is nothing to train on: give training=TrainingTask(...) "
                "to goldstick.apply, or data (--dataset)."
            )
        self.stage, self.number = stage, self.number + 1
        stage.act(self)

    def apply(self, edits: Sequence[Edit]) -> None:
        """Let the surgeon change the network."""
        surgery.apply(self.network, edits)

    def train(self) -> None:
        """Train the network as it is."""
        task, options = self._lesson()
        with in_float32(self.network.model):  # what is searched is rounded to the dtype of the result all the same
            record = train(self.network.model, task, options, description=self._description, progress=self.progress)
        self._account(record)

    def train_codes(self, stage: TrainedQuantizer) -> None:
        """Train the network with stand-ins for the layers that ``stage`` quantizes, and round these."""
        wrappers = _put_in(self.network, self.resolution, stage)
        self.train()
        for name, (wrapper, weight) in wrappers.items():
            assignment = self.resolution.assignments[name]
            surgery.replace_module(self.network, assignment.site, wrapper.layer)
            edit, error = decide(assignment.stage, assignment.site, weight, assignment.scheme, wrapper)
            surgery.apply(self.network, [edit])
            self.results[name] = SiteResult(assignment=assignment, error=error, notes=edit.notes)

    def prune(self, stage: SCOP) -> None:
        """Score channels and cut some, and resolve the recipe for what is left."""
        task, _ = self._lesson()
        with in_float32(self.network.model):
            pruned = prune(self.network, stage, task, self._description, self.progress)
        self.network = pruned.network
        self.resolution = resolve(self.resolution.stages, pruned.network)
        self.pruning.append(pruned.account)
        self.edits += (pruned.edit,)
        if pruned.record is not None:
            self._account(pruned.record)

    @property
    def _description(self) -> str:
        assert self.stage is not None
        return f"{self.number}-{self.stage.name}"

    def _lesson(self) -> tuple[TrainingTask, TrainingOptions]:
        """The task of the stage that acts, and how it learns."""
        assert self.stage is not None
        options = self.stage.learns()
        if options is None or self.task is None:
            raise RecipeError(
                f"{self.stage.name} asks for a training, and does not say how or by data_requirement that it trains."
            )
        return _of_stage(_taught(self.task, options, self.teacher), self.stage), options

    def _account(self, record: TrainingRecord) -> None:
        assert self.stage is not None
        self.accounts.append({"stage": self.stage.name, **_words(record)})


def train_stages(network: Network, resolution: Resolution, task: TrainingTask | None, progress: Progress) -> Trained:
    """Carry out the stages that act on the whole float network, in their order and in place.

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
    stages = resolution.of(NetworkStage)
    distills = any(options.distill for stage in stages if (options := stage.learns()) is not None)
    teacher = deep_copy(network.model) if distills else None
    done = Trained(network=network, resolution=resolution, task=task, progress=progress, teacher=teacher)
    for stage in stages:
        done.act(stage)
    return done


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
