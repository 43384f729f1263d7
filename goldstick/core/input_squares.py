"""How large the inputs of a weight's columns are on average: an importance matrix, measured or from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.core.inputs import InputObserver


@dataclass(frozen=True, kw_only=True, eq=False)
class InputSquares:
    """The squares of the inputs of one or several matrices, in the float32 numbers that files hold.

    Attributes:
        sums: Σ x² over the tokens, float32 [matrices, in]; one row but for experts.
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
        return cls(sums=torch.stack(sums).float(), counts=counts)

    def mean_square(self) -> Tensor:
        """Σ x² / tokens, float32 [matrices, in]; 1 for a matrix without tokens, of which all columns count alike."""
        counts = self.counts.unsqueeze(1)
        return torch.where(counts > 0, self.sums / counts.clamp(min=1), torch.ones_like(self.sums))

    def of_matrix(self, number: int) -> InputSquares:
        """Those of one matrix."""
        return InputSquares(sums=self.sums[number : number + 1], counts=self.counts[number : number + 1])
