"""The statistics of a site's inputs: one observer, or one for each expert."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from torch import Tensor

from goldstick.core.inputs import InputObserver
from goldstick.core.ranks import Ranks
from goldstick.errors import QuantizationError
from goldstick.structure.network import Site

Value = TypeVar("Value")

Observers = InputObserver | Sequence[InputObserver]


class ExpertObservers(list[InputObserver]):
    """The observers of the experts of one site, in their order.

    Attributes:
        ranks: The ranks that saw a part of the tokens each; after :meth:`share`.
    """

    ranks = Ranks()

    def share(self, ranks: Ranks) -> None:
        """What is known becomes that of all ranks, all of which call this."""
        self.ranks = ranks
        for observer in self:
            observer.share(ranks)

    def each(self, do: Callable[[int], Value], wanted: Collection[str]) -> list[Value]:
        """What ``do`` gives for the number of each expert; the ranks take turns, with one set of statistics each.

        Args:
            do: Called once for each expert, on one rank.
            wanted: What it asks of the observer.
        """
        found: list[Value] = []
        for start in range(0, len(self), self.ranks.count):
            experts = range(start, min(start + self.ranks.count, len(self)))
            for owner, expert in enumerate(experts):
                self[expert].settle(wanted, owner)
            found += self.ranks.divided(range(len(experts)), lambda turn, first=start: do(first + turn))  # type: ignore[misc]
        return found


def observers_for(site: Site) -> InputObserver | ExpertObservers:
    """The Hessian of the site's inputs; for experts a list of them, one each."""
    experts = site.matrix_shape[:-2]
    if not experts:
        return InputObserver(site.in_features)
    return ExpertObservers(InputObserver(site.in_features) for _ in range(math.prod(experts)))


def observers_of(state: Observers, weight: Tensor) -> list[InputObserver]:
    """The observer of each matrix of ``weight`` [..., out, in], in order.

    Raises:
        QuantizationError: There are more or fewer.
    """
    observers = [state] if isinstance(state, InputObserver) else list(state)
    matrices = math.prod(weight.shape[:-2])
    if len(observers) != matrices:
        raise QuantizationError(f"{matrices} matrices need a Hessian each, not {len(observers)}.")
    return observers
