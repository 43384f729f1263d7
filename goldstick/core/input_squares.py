"""How large the inputs of a weight's columns are on average: an importance matrix, measured or from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.core.inputs import InputObserver
from goldstick.core.powers_of_two import exponents_of, power_of_two

#: From which power of two on sums are brought near 1; float32 holds up to 2^128, and full bits down to 2^−126.
_FAR = 60


@dataclass(frozen=True, kw_only=True, eq=False)
class InputSquares:
    """The squares of the inputs of one or several matrices, in the float32 numbers that files hold.

    Attributes:
        sums: Σ x² over the tokens, float32 [matrices, in]; one row but for experts. Where these are far from what
            float32 holds, times a power of two, one for each matrix: only their ratios count.
        counts: Tokens that each matrix was given, float32 [matrices].
    """

    sums: Tensor
    counts: Tensor

    @classmethod
    def of(cls, observers: Sequence[InputObserver]) -> InputSquares:
        """What observers have seen, a matrix each.

        Raises:
            QuantizationError: Batches were let go before, or more than 1 % of the inputs hold NaN or infinity.
        """
        counts = torch.tensor([observer.tokens for observer in observers], dtype=torch.float32)
        sums = [observer.mean_square() * observer.tokens for observer in observers]
        return cls(sums=_in_float32(torch.stack(sums)), counts=counts)

    def mean_square(self) -> Tensor:
        """Σ x² / tokens, float32 [matrices, in]; 1 for a matrix without tokens, of which all columns count alike."""
        counts = self.counts.unsqueeze(1)
        return torch.where(counts > 0, self.sums / counts.clamp(min=1), torch.ones_like(self.sums))

    def of_matrix(self, number: int) -> InputSquares:
        """Those of one matrix."""
        return InputSquares(sums=self.sums[number : number + 1], counts=self.counts[number : number + 1])


def _in_float32(sums: Tensor) -> Tensor:
    """Rows of float64 sums in float32, near 1 where their largest is far from what that holds."""
    exponent = exponents_of(sums.amax(-1, keepdim=True))
    return (sums * power_of_two(torch.where(exponent.abs() > _FAR, -exponent, 0))).float()
