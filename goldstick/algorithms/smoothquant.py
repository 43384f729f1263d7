"""SmoothQuant: move the outliers of activations into the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from goldstick.algorithms.base import DataRequirement, Member, Smoother, SmoothScale
from goldstick.algorithms.smooth_scale import SmoothLoss, bounded, least_loss
from goldstick.core.inputs import InputObserver
from goldstick.errors import RecipeError

#: What ``alpha: search`` tries.
ALPHAS = (0.0, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)


def smooth_scale(activation: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """sⱼ = max|xⱼ|^α / maxᵢ|W_ij|^(1−α) (arXiv 2211.10438, equation 4), float32 [in], within [1e-4, 1e4].

    A channel that is always zero, or that no weight reads, keeps sⱼ = 1.

    Args:
        activation: max|xⱼ|, float64 [in].
        weight: maxᵢ|W_ij| over the rows of all layers that read the inputs, float64 [in].
        alpha: How much of the difficulty goes into the weights, 0 to 1.
    """
    return bounded(activation.pow(alpha) / weight.pow(1 - alpha), (activation > 0) & (weight > 0))


@dataclass(frozen=True, kw_only=True)
class SmoothQuant(Smoother):
    """Divide activations by a scale for each channel and multiply the weights by it (arXiv 2211.10438).

    Channels of large activations take the steps of the 8-bit grid away from all others of their token; what is
    divided off them is carried by the weights, which are easier to round. Chooses scales only: a later stage rounds.
    A scale is used only where it lowers the simulated output error of the group.

    Attributes:
        targets: Which layers.
        alpha: How much of the difficulty goes into the weights, from 0 (that of the weights goes into the activations)
            to 1; or ``search``, for the one of least simulated error for each group.
        unfoldable: What to do where nothing can absorb a scale; see :class:`Smoother`.
    """

    name: ClassVar[str] = "smoothquant"
    data_requirement: ClassVar[DataRequirement] = DataRequirement.BLOCKWISE

    alpha: float | Literal["search"] = 0.5

    def __post_init__(self) -> None:
        if self.alpha != "search" and not 0 <= self.alpha <= 1:
            raise RecipeError(f"alpha is a number from 0 to 1 or 'search', not {self.alpha}.")

    def smooth_scale(self, members: Sequence[Member], observer: InputObserver) -> SmoothScale:
        """The scale of α, or of the best α, where the simulated error falls by it; see :class:`SmoothLoss`.

        Raises:
            QuantizationError: A weight, or more than 1 % of the inputs, hold NaN or infinity.
        """
        if not observer.tokens:
            return SmoothScale(scale=None, notes={"unbalanced": "no input ever reached the layers"})
        activation = observer.largest()
        weight = torch.stack([member.weight.double().abs().amax(0).cpu() for member in members]).amax(0)
        alphas: Sequence[float] = ALPHAS if self.alpha == "search" else (self.alpha,)
        candidates = (({"alpha": alpha}, smooth_scale(activation, weight, alpha)) for alpha in alphas)
        return least_loss(SmoothLoss(members, observer), candidates)
