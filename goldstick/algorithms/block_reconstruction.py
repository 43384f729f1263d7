"""What a block reconstruction is: a stage that searches on from codes that others chose, a block at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

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
        steps: Optimizer steps for each block, of one calibration batch each.
        seed: Seed of the order of the batches.
    """

    data_requirement: ClassVar[DataRequirement] = DataRequirement.BLOCKWISE
    place: ClassVar[Place] = Place.LAST

    steps: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise RecipeError(f"steps is at least 1, not {self.steps}.")
        check_seed(self.seed)

    @abstractmethod
    def search(self, tensor: QuantizedTensor, weight: Tensor) -> CodeSearch:
        """The search around the codes of a weight.

        Args:
            tensor: The codes.
            weight: The float weight they stand for, [out, in].
        """
