"""How errors of what a block gives count together: by what the loss at the end makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.core.output_groups import neighbours
from goldstick.core.ranks import Ranks
from goldstick.core.token_mask import TokenMask

#: Added to the diagonal at least: of fewer tokens than channels G has no factor.
_LEAST = 1e-4
_LOOKS = ("observe_range", "share_ranges"), ("observe", "share")


@dataclass(frozen=True, kw_only=True)
class OutputMetric:
    """eᵀ M e of an error e of a block's output, M = (1 − share) · G / mean(diag G) + share · I, G = E[g gᵀ].

    g are the gradients of the loss at the end with respect to what the float block gives. As for the outputs of a layer
    (YAQA, arXiv 2505.22988), errors that cancel each other further on count for less than others of their size.

    Attributes:
        factors: Neighbouring channels, and the lower factor C of their M = C Cᵀ, float32.
    """

    factors: Sequence[tuple[slice, Tensor]]

    @classmethod
    def of(
        cls, gradients: Sequence[Tensor], masks: Sequence[TokenMask], share: float, ranks: Ranks
    ) -> OutputMetric | None:
        """That of the gradients at a block's output, in sums that are exact.

        Args:
            gradients: [..., channels], batch by batch.
            masks: Which tokens of each batch count.
            share: How much of the plain square is mixed in, 0 to 1.
            ranks: Who has gradients of further batches.

        Returns:
            ``None`` where all gradients are zero.
        """
        (channels,) = {width for each in ranks.gather([one.shape[-1] for one in gradients[:1]]) for width in each}
        parts = neighbours(channels)
        for look, shared in _LOOKS:
            for gradient, mask in zip(gradients, masks, strict=True):
                for part, observer in parts:
                    getattr(observer, look)(gradient[..., part].float(), mask.of(gradient))
            for _, observer in parts:
                getattr(observer, shared)(ranks)
        outer = [observer.take_hessian() for _, observer in parts]
        mean = sum(float(one.diagonal().sum()) for one in outer) / channels
        if not 0 < mean < float("inf"):
            return None
        for one in outer:
            one.mul_((1 - share) / mean).diagonal().add_(max(share, _LEAST))
        factors = [torch.linalg.cholesky(one).float() for one in outer]
        return cls(factors=[(part, factor) for (part, _), factor in zip(parts, factors, strict=True)])

    def __call__(self, error: Tensor) -> Tensor:
        """Cᵀ e: its sum of squares is eᵀ M e; float32 [..., channels], as the error."""
        return torch.cat([error[..., part] @ factor.to(error.device) for part, factor in self.factors], dim=-1)
