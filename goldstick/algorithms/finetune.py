"""Fine-tuning: train the float network as it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from goldstick.algorithms.base import DataRequirement, Stage
from goldstick.core.training import TrainingOptions


@dataclass(frozen=True, kw_only=True)
class Finetune(Stage):
    """Train the float network before the stages that round it.

    Attributes:
        training: How long and how fast.
    """

    name: ClassVar[str] = "finetune"

    training: TrainingOptions = field(default_factory=TrainingOptions)

    @property
    def data_requirement(self) -> DataRequirement:
        """It trains."""
        return DataRequirement.TRAINING
