"""What a sweep has to do: which stage quantizes which site, and which stages smooth the inputs before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from torch import Tensor

from goldstick.algorithms.base import Algorithm, Guide, Quantizer, Stage
from goldstick.algorithms.block_reconstruction import BlockReconstruction
from goldstick.algorithms.validate import Validate
from goldstick.core.edits import Fold, Quantize
from goldstick.core.input_squares import InputSquares
from goldstick.core.ranks import Ranks
from goldstick.core.scheme import Scheme
from goldstick.structure.network import Site

AnyStage_co = TypeVar("AnyStage_co", bound=Stage, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What happens to one site.

    Attributes:
        site: The site.
        stage: The stage that quantizes it.
        scheme: What it becomes, after overrides and divisibility.
        note: What was decided differently from the stage's scheme, and why; or empty.
        multiplied: Whether it holds a factor for each input, so that scales need nothing before it to absorb them.
        importance: The squares of the inputs of each of its matrices, where a file says them and no data are looked at.
        rotated: Channels that are mixed by the Hadamard transform of its input at run time; 0 for none.
    """

    site: Site
    stage: Quantizer
    scheme: Scheme
    note: str = ""
    multiplied: bool = False
    importance: InputSquares | None = None
    rotated: int = 0


@dataclass(frozen=True, kw_only=True)
class Step(Generic[AnyStage_co]):
    """A stage, and what it acts on in a network.

    Attributes:
        stage: The stage.
        sites: Names of the sites; of a stage that scales inputs those it is meant for. A group of layers that is meant
            only in part is left as it is.
    """

    stage: AnyStage_co
    sites: frozenset[str]


def _cannot_round(task: Assignment, weight: Tensor) -> Quantize:
    raise NotImplementedError(f"nobody has said how {task.site.name} is rounded")


#: Solves a task from its weight [..., out, in], its state, and what earlier stages noted about the site; nothing leaves
#: it as it is.
Decide = Callable[[Assignment, Tensor, Any, Mapping[str, float | str]], Quantize | None]


@dataclass(frozen=True, kw_only=True)
class Work:
    """Everything a sweep has to do.

    Attributes:
        tasks: Site name → what to do there.
        smoothing: The stages that smooth, in their order.
        decide: Solves one task.
        reconstruction: The stage that improves the codes of each block, when all its tasks are solved.
        validation: The stage that judges each block on batches held out; before the reconstruction.
        rounded: Rounds the weight [..., out, in] of a task to nearest, for the validation.
        corrected: Names of the sites whose bias makes up for what rounding adds to their output on average.
        measure: Shown the state of a task by all ranks, before one of them solves it.
        revise: Told of a task that the block reconstruction, or another rank, solved: the weight [..., out, in] and the
            edit.
        absorbed: Told that a layer which was decided has absorbed a scale.
        ranks: Who does this work together, each with batches of its own.
    """

    tasks: Mapping[str, Assignment]
    decide: Decide
    smoothing: tuple[Step[Algorithm], ...] = field(default=())
    reconstruction: BlockReconstruction | None = None
    validation: Validate | None = None
    rounded: Callable[[Assignment, Tensor], Quantize] = _cannot_round
    corrected: frozenset[str] = frozenset()
    measure: Callable[[Assignment, Any], None] = lambda task, state: None
    revise: Callable[[Assignment, Tensor, Quantize], None] = lambda task, weight, edit: None
    absorbed: Callable[[Fold], None] = lambda fold: None
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def guided(self) -> dict[Guide, list[Assignment]]:
        """Guide → the tasks whose inputs a stage that rounds or smooths them wants weighted so."""
        found: dict[Guide, list[Assignment]] = {}
        for task in self.tasks.values():
            smoothing = [step.stage.scale_guide for step in self.smoothing if task.site.name in step.sites]
            for guide in dict.fromkeys((task.stage.guide, *smoothing)):
                if guide is not None:
                    found.setdefault(guide, []).append(task)
        return found

    @property
    def needs_float_inputs(self) -> bool:
        """Whether the float model must run beside."""
        beside = any(task.stage.needs_float_inputs for task in self.tasks.values())
        return self.reconstruction is not None or self.validation is not None or beside or bool(self.guided)

    @property
    def holdout(self) -> float:
        """Which share of the batches is held out, at the most."""
        return max(stage.holdout if stage is not None else 0.0 for stage in (self.validation, self.reconstruction))

    @property
    def needs_end_gradients(self) -> bool:
        """Whether gradients of the float model's loss are wanted."""
        learning = self.reconstruction.guide if self.reconstruction is not None else None
        return any(guide.objective == "loss" for guide in (*self.guided, learning) if guide is not None)

    def within(self, block: str | None) -> Work:
        """The part of it that lies in one block; ``None`` for what lies outside all blocks."""
        tasks = {name: task for name, task in self.tasks.items() if task.site.block == block}
        return replace(self, tasks=tasks) if block is not None and tasks else replace(self, tasks=tasks).alone()

    def alone(self) -> Work:
        """The same for layers that are no part of a block that feeds others: they are not judged, and say so."""
        decide = self.decide if self.validation is None else partial(_unjudged, self.decide)
        return replace(self, reconstruction=None, validation=None, decide=decide)


def _unjudged(
    decide: Decide, task: Assignment, weight: Tensor, state: Any, notes: Mapping[str, float | str]
) -> Quantize | None:
    return decide(task, weight, state, {**notes, "validation": "not judged: it lies in no block that feeds others"})
