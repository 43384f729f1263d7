"""TrainingOptions: how long and how fast a training stage learns, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from goldstick.core.seed import check_seed
from goldstick.errors import RecipeError

Optimizer = Literal["adamw", "sgd"]
Schedule = Literal["cosine", "linear", "constant"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How a training stage learns.

    The learning rate is ``rate`` · min(1, p / warmup) · f(p) with p the share of the training that is done and f the
    schedule: (1 + cos πp) / 2, 1 − p, or 1.

    Attributes:
        epochs: Passes over the data.
        steps: Number of optimizer steps, instead of ``epochs``.
        optimizer: ``adamw``, or ``sgd`` with Nesterov momentum 0.9.
        rate: The learning rate at its highest.
        betas: How slowly the means of ``adamw`` forget, of gradients and of their squares.
        weight_decay: Decay of matrices; norms and biases have none.
        schedule: How the learning rate falls.
        warmup: Share of the training over which it rises.
        patience: Stop after so many epochs in a row in which the validation got no better; ``None`` for never.
        norm_batches: Batches over which the running statistics of batch norms are measured anew, with the weights as
            they will be stored, before each validation and at the end; 0 to keep what training left.
        distill: Share of the loss that is the divergence from the network as it came into the run, before any stage
            (arXiv 1503.02531); it is kept beside the one that learns.
        distill_temperature: By what scores are divided for it.
        precision: In what products and convolutions of a training step are computed, forward and backward. Weights,
            sums of gradients and the optimizer stay in float32, and so do validations and statistics of batch norms.
        seed: Seed of everything random.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    epochs: int = 10
    steps: int | None = None
    optimizer: Optimizer = "adamw"
    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    schedule: Schedule = "cosine"
    warmup: float = 0.0
    patience: int | None = None
    norm_batches: int = 50
    distill: float = 0.0
    distill_temperature: float = 4.0
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "steps", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RecipeError(f"training.{name} is at least 1, not {value}.")
        check_seed(self.seed, "training.seed")
        if not (math.isfinite(self.rate) and self.rate > 0) or not 0 <= self.weight_decay < math.inf:
            raise RecipeError(
                f"training.rate is positive and training.weight_decay 0 or more, both finite, not {self.rate} and "
                f"{self.weight_decay}."
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise RecipeError(f"training.betas are from 0 to below 1, not {self.betas}.")
        if not 0 <= self.warmup < 1:
            raise RecipeError(f"training.warmup is a share of the training, from 0 to below 1, not {self.warmup}.")
        if not 0 <= self.distill <= 1 or not (math.isfinite(self.distill_temperature) and self.distill_temperature > 0):
            raise RecipeError(
                f"training.distill is a share from 0 to 1 and distill_temperature positive, not {self.distill} and "
                f"{self.distill_temperature}."
            )
        if self.norm_batches < 0:
            raise RecipeError(f"training.norm_batches is 0 or more, not {self.norm_batches}.")

    def factor(self, progress: float) -> float:
        """The learning rate at ``progress`` (0 to 1) as a share of the highest."""
        falling = {"cosine": (1 + math.cos(math.pi * progress)) / 2, "linear": 1 - progress, "constant": 1.0}
        rising = min(1.0, progress / self.warmup) if self.warmup else 1.0
        return rising * falling[self.schedule]
