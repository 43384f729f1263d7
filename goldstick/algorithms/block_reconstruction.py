"""What a block reconstruction is: a stage that searches on from codes that others chose, a block at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import Tensor, nn

from goldstick.algorithms.guide import Guide
from goldstick.algorithms.stage import DataRequirement, Place, Stage
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.seed import check_seed
from goldstick.errors import RecipeError


class CodeSearch(ABC):
    """A search around the codes of one weight, while the block it lies in learns."""

    @abstractmethod
    def anneal(self, progress: float) -> None:
        """Take note of how much of the search is done, from 0 to 1."""

    @abstractmethod
    def weight(self) -> Tensor:
        """The weight as it stands, [out, in], through which gradients flow."""

    @abstractmethod
    def groups(self) -> list[tuple[nn.Parameter, float]]:
        """Its parameters with their learning rates at their highest."""

    @abstractmethod
    def decision(self) -> QuantizedTensor:
        """What was found."""


@dataclass(frozen=True, kw_only=True)
class BlockReconstruction(Stage):
    """A stage that improves the codes of a block's layers together, when the stages before it have chosen them.

    Attributes:
        steps: Optimizer steps for each block.
        batches: Calibration batches of a step.
        holdout: Share of the calibration batches, the last, that a block does not learn from and is judged by; at 0 it
            is judged by all.
        seed: Seed of the order of the batches.
    """

    data_requirement: ClassVar[DataRequirement] = DataRequirement.BLOCKWISE
    place: ClassVar[Place] = Place.LAST
    #: How often what is found is judged while a block learns, and the best kept; 1: at the end alone.
    judgements: ClassVar[int] = 1
    #: Whether a loss or a gradient that is no number leaves a block at the best it had; otherwise it is an error.
    survives: ClassVar[bool] = False
    #: Whether it searches the codes of every grid, or of integers with float scales alone.
    any_grid: ClassVar[bool] = False
    #: What to do where no batch can be held out, for errors.
    without_holdout: ClassVar[str] = "set holdout: 0"

    steps: int = 200
    batches: int = 1
    holdout: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batches < 1:
            raise RecipeError(f"steps and batches are at least 1, not {self.steps} and {self.batches}.")
        if not 0 <= self.holdout <= 0.5:
            raise RecipeError(f"holdout is a share of the calibration batches, 0 to 0.5, not {self.holdout}.")
        check_seed(self.seed)

    def passes(self, batches: int) -> float:
        """A step goes through a batch and back, and takes two passes more for the weights; further ones judge."""
        return 1 + 5 * self.steps * self.batches / batches + self.judgements * (self.holdout or 1)

    @property
    def guide(self) -> Guide | None:
        """How errors of what a block gives are weighted; ``None`` for all alike."""
        return None

    @abstractmethod
    def with_fixed_scales(self) -> Self:
        """The same, with scales that stay what they are."""

    @abstractmethod
    def search(self, tensor: QuantizedTensor, weight: Tensor) -> CodeSearch:
        """The search around the codes of a weight.

        Args:
            tensor: The codes.
            weight: The float weight they stand for, [out, in].
        """


@dataclass(frozen=True, kw_only=True)
class AnnealedSearch(BlockReconstruction):
    """A block reconstruction that assigns weights softly to levels, P = softmax(T·A), and hardens them on its way.

    Attributes:
        rate: The learning rate of the scales' logarithms at its highest; it falls to nothing.
        logits_rate: The learning rate of the logits A.
        temperature: The highest T.
        anneal_from: Share of the steps after which T rises.
        harden_at: Share of the steps after which weights are one-hot and scales alone learn.
    """

    rate: float = 2e-3
    logits_rate: float = 2e-2
    temperature: float = 50.0
    anneal_from: float = 0.2
    harden_at: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.anneal_from < self.harden_at <= 1:
            raise RecipeError(
                f"anneal_from and harden_at are shares of the steps, the first below the second, not "
                f"{self.anneal_from} and {self.harden_at}."
            )
        if not self.temperature >= 1 or not self.logits_rate > 0 or not self.rate >= 0:
            raise RecipeError(
                f"temperature is at least 1, logits_rate positive and rate 0 or more, not {self.temperature}, "
                f"{self.logits_rate} and {self.rate}."
            )

    def with_fixed_scales(self) -> Self:
        """The same, with scales that stay what they are."""
        return replace(self, rate=0.0)
