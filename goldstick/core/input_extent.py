"""How many inputs a group of layers is given and how far each channel reaches, over all ranks that see some of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from goldstick.core.ranks import Ranks
from goldstick.core.rows import as_rows, finite_rows
from goldstick.core.shared_rows import SharedRows
from goldstick.errors import QuantizationError

_MOST_DROPPED = 0.01


class InputExtent:
    """The number and the ends of inputs: a maximum has no order, so all of it has one bit pattern for one set of them.

    Args:
        in_features: Length of an input.

    Attributes:
        tokens: Inputs counted, n.
        dropped: Inputs left out because they hold NaN or infinity.
        shared: Who solves together, each some rows, a layer that reads them; ``None``: one alone.
    """

    def __init__(self, in_features: int) -> None:
        self.in_features = in_features
        self.tokens = 0
        self.dropped = 0
        self.shared: SharedRows | None = None
        self._largest = torch.zeros(in_features, dtype=torch.float64)
        self._lowest = torch.full((in_features,), torch.inf, dtype=torch.float64)
        self._highest = -self._lowest
        self._ranges_given = False
        self._expected = 0
        self._ranks, self._first = Ranks(), 0

    def lowest(self) -> Tensor:
        """The least value of each channel, exact, float64 [in]; +inf before any input."""
        self.refuse_too_many_dropped()
        return self._lowest

    def highest(self) -> Tensor:
        """The greatest value of each channel, exact, float64 [in]; −inf before any input."""
        self.refuse_too_many_dropped()
        return self._highest

    def largest(self) -> Tensor:
        """max|xⱼ| over the inputs, float64 [in]; zero where nothing was observed."""
        return self._largest.clone()

    def share_ranges(self, ranks: Ranks) -> None:
        """Behind the last ``observe_range``: the ranges become those of all ranks, all of which call this."""
        if ranks.alone:
            return
        self._share_ends(ranks)
        self._ranges_given = True
        expected = ranks.gather(self._expected)
        self._first, self._expected = sum(expected[: ranks.rank]), sum(expected)

    def _share_ends(self, ranks: Ranks) -> None:
        if ranks.alone:
            return
        self._ranks = ranks
        ranks.extremes(self._lowest, self._highest)
        self._largest = torch.maximum(-self._lowest, self._highest).clamp_(min=0)

    @property
    def too_many_dropped(self) -> bool:
        """Whether more than 1 % of the inputs were dropped."""
        return self.dropped > _MOST_DROPPED * (self.tokens + self.dropped)

    def refuse_too_many_dropped(self) -> None:
        """Raise QuantizationError where more than 1 % of the inputs were dropped."""
        if self.too_many_dropped:
            raise QuantizationError(
                f"{self.dropped} of {self.tokens + self.dropped} inputs hold NaN or infinity; check the calibration "
                "data, or load the model in bfloat16 or float32."
            )

    def _chunks(self, x: Tensor, mask: Tensor | None) -> Iterator[tuple[Tensor, int]]:
        """The rows of a batch that count and are finite, and how many are not; a few at a time."""
        if x.ndim == 0 or x.shape[-1] != self.in_features:
            raise QuantizationError(f"Inputs of shape {tuple(x.shape)} do not end in {self.in_features} features.")
        if mask is not None and mask.shape != x.shape[:-1]:
            raise QuantizationError(f"A mask of shape {tuple(mask.shape)} does not fit inputs {tuple(x.shape)}.")
        return finite_rows(as_rows(x.detach()), None if mask is None else mask.reshape(-1).bool())

    def _widen(self, rows: Tensor) -> None:
        if len(rows):
            low, high = (end.to(self._largest) for end in (rows.amin(0), rows.amax(0)))  # ten times as fast as aminmax
            self._lowest, self._highest = torch.minimum(self._lowest, low), torch.maximum(self._highest, high)
            self._largest = torch.maximum(self._largest, torch.maximum(-low, high))

    def _over_ranks(self, total: Tensor, owner: int | None = None, *, upper: bool = False) -> None:
        """Sum whole numbers over all ranks, in place; where no rank saw an input there is nothing to ask for.

        Args:
            total: int64 [...].
            owner: The rank that needs the sum; all of them where ``None``.
            upper: Whether what lies below the diagonal of a square matrix is of no account.
        """
        if self.tokens:
            self._ranks.add(total, owner, upper=upper)
