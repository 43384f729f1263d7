"""DiagonalObserver: how large each channel of inputs is, where nobody asks how channels go together."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.inputs import InputObserver
from goldstick.errors import QuantizationError


class DiagonalObserver(InputObserver):
    """Sums the diagonal of the Hessian alone, to the bit; batches come twice, their ranges first."""

    def _zeros(self) -> Tensor:
        return torch.zeros(self.in_features, dtype=torch.int64, device=self._device)

    def _add(self, sums: Tensor, rows: Tensor) -> None:
        sums += self._whole(rows).long().square_().sum(0)

    def _summed(self, owner: int | None = None) -> Tensor:
        raise QuantizationError("Of these inputs only the squares were summed, and no Hessian.")
