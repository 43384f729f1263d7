"""Fine-tuning: train the float network as it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from goldstick.algorithms.stage import DataRequirement, NetworkRun, NetworkStage
from goldstick.core.training import TrainingOptions


@dataclass(frozen=True, kw_only=True)
class Finetune(NetworkStage):
    """Train the float network before the stages that round it.

    Attributes:
        training: How long and how fast.
    """

    name: ClassVar[str] = "finetune"
    remedy: ClassVar[str] = "fine-tune before it, or give it more epochs"

    training: TrainingOptions = field(default_factory=TrainingOptions)

    @property
    def data_requirement(self) -> DataRequirement:
        """It trains."""
        return DataRequirement.TRAINING

    def learns(self) -> TrainingOptions:
        """As its options say."""
        return self.training

    def act(self, run: NetworkRun) -> None:
        """Train."""
        run.train()
