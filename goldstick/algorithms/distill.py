"""Distillation to the end: scales and norms learn the float network's scores, when all codes are chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from goldstick.algorithms.stage import DataRequirement, Place, Stage
from goldstick.core.seed import check_seed
from goldstick.core.training import TrainingOptions
from goldstick.errors import RecipeError


@dataclass(frozen=True, kw_only=True)
class Distill(Stage):
    """Train the scales of quantized linear layers and the norms for what the float network predicts; codes stay.

    The loss of a batch is the mean of KL(softmax(t) ‖ softmax(z)) over the tokens that count, t the scores of the
    network before anything was rounded and z those of the rounded one, end to end (the second phase of EfficientQAT,
    arXiv 2407.11062, with distillation in the place of labels). Each scale is s = s₀·exp(δ), rounded in every step to
    what will be stored; powers of two, whole numbers of superblocks and scales that blocks or tensors share stay, and
    so do the scales of layers other than linear ones. After each epoch the network is judged on calibration batches it
    has not learned from, and the best is kept: the start, where nothing is better.

    Attributes:
        epochs: Passes over the calibration batches.
        rate: The learning rate of δ at its highest; it falls to nothing with half a cosine.
        norms_rate: That of the gains and shifts of norms; 0 leaves them as they are.
        holdout: Share of the calibration batches, the last, that is judged by; above 0, at most 0.5.
        seed: Seed of the order of the batches.
    """

    name: ClassVar[str] = "distill"
    data_requirement: ClassVar[DataRequirement] = DataRequirement.BLOCKWISE
    place: ClassVar[Place] = Place.END
    once: ClassVar[bool] = True

    epochs: int = 4
    rate: float = 1e-3
    norms_rate: float = 1e-4
    holdout: float = 0.125
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise RecipeError(f"epochs is at least 1, not {self.epochs}.")
        if not 0 < self.holdout <= 0.5:
            raise RecipeError(f"holdout is a share of the batches above 0, at most 0.5, not {self.holdout}.")
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise RecipeError(f"rate is positive and finite, not {self.rate}.")
        if not (math.isfinite(self.norms_rate) and self.norms_rate >= 0):
            raise RecipeError(f"norms_rate is 0 or more and finite, not {self.norms_rate}.")
        check_seed(self.seed)

    def passes(self, batches: int) -> float:
        """Through the network and back in each epoch, and through the float one once."""
        return 1.0 + 3 * self.epochs

    def learns(self) -> TrainingOptions:
        """How it trains: the rate is that of the norms."""
        rate = self.norms_rate or self.rate  # without norms nothing learns at it
        return TrainingOptions(epochs=self.epochs, rate=rate, norm_batches=0, seed=self.seed)
