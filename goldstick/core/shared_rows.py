"""One matrix that several ranks solve together, each its own rows, where rows do not meet each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor, joined
from goldstick.core.ranks import Ranks
from goldstick.core.rows import all_finite
from goldstick.errors import GoldstickError

Value = TypeVar("Value")


@dataclass(frozen=True)
class SharedRows:
    """Which rows of a matrix are a rank's own, and what all of them give together; alone, one has all rows.

    A sum is taken over the numbers of all rows in their order, so that it has one bit pattern for any number of ranks.
    Methods are called by all ranks, in one order.

    Attributes:
        ranks: Who solves the matrix.
    """

    ranks: Ranks = field(default_factory=Ranks)

    def of(self, weight: Tensor, grid: Grid) -> SharedRows:
        """These, where the rows of a matrix [out, in] share no scale and are enough; else all rows here."""
        if self.alone:
            return self
        apart = not grid.rows_share_scales and len(weight) >= self.ranks.count and all_finite(weight)
        return self if apart else SharedRows()

    @property
    def alone(self) -> bool:
        """Whether all rows are solved here."""
        return self.ranks.alone

    def own(self, rows: int) -> slice:
        """The rows of this rank, of so many."""
        share = self.ranks.share(rows)
        return slice(share.start, share.stop)

    def tried(self, do: Callable[[], Value]) -> Value:
        """What a rank finds for its own rows; an error of one is raised by all."""
        if self.alone:
            return do()
        found, error = None, None
        try:
            found = do()
        except GoldstickError as raised:
            error = raised
        for each in self.ranks.gather(error):
            if each is not None:
                raise each
        return cast(Value, found)

    def total(self, values: Tensor) -> float:
        """The sum of a number for each own row, float64 [own rows], over all rows."""
        return float(torch.cat(self.ranks.gather(values)).sum())

    def whole(self, tensor: QuantizedTensor, shape: torch.Size) -> QuantizedTensor:
        """What was decided for all rows of a matrix [out, in], from that for a rank's own."""
        if self.alone:
            return tensor
        return joined(self.ranks.gather(tensor), shape, tensor.grid)
