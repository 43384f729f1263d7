"""The multiple-choice knapsack: one candidate for each group of layers, the least loss for every number of bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Points of a front between two groups; with more, bytes are counted in larger units, rounded up.
MOST_POINTS = 200_000


@dataclass(frozen=True, kw_only=True)
class Option:
    """A candidate of a group.

    Attributes:
        nbytes: Bytes that it takes.
        loss: What it costs.
    """

    nbytes: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One candidate of each group.

    Attributes:
        nbytes: The sum of their bytes.
        loss: The sum of their losses.
        picks: The number of each group's candidate.
    """

    nbytes: int
    loss: float
    picks: tuple[int, ...]


class Front:
    """Every choice that no other beats in both bytes and loss (Nemhauser and Ullmann 1969), the smallest first.

    Group by group, each point so far is combined with each candidate, and what is beaten is dropped. That is exact:
    a part of a best choice is a best choice of its bytes. Where more than ``MOST_POINTS`` points are left, the
    smallest is kept, and in each of so many equal spans of bytes the one of least loss; ``exact`` says whether
    that was ever done.

    Args:
        groups: The candidates of each group; at least one each.
    """

    def __init__(self, groups: Sequence[Sequence[Option]]) -> None:
        self.exact = True
        self.nbytes, self.losses = np.zeros(1, dtype=np.int64), np.zeros(1)
        self._before: list[np.ndarray] = []  # for each group: the point that each point came from …
        self._picked: list[np.ndarray] = []  # … and the candidate
        for options in groups:
            self._add(options)

    def _add(self, options: Sequence[Option]) -> None:
        sizes = np.array([option.nbytes for option in options], dtype=np.int64)
        losses = np.array([option.loss for option in options])
        nbytes = (self.nbytes[:, None] + sizes).ravel()
        total = (self.losses[:, None] + losses).ravel()
        order = np.lexsort((total, nbytes))
        least = np.minimum.accumulate(total[order])
        better = np.concatenate(([True], least[1:] < least[:-1]))
        kept = order[better]
        if len(kept) > MOST_POINTS:
            self.exact = False
            span = nbytes[kept[-1]] - nbytes[kept[0]] + 1
            places = (nbytes[kept] - nbytes[kept[0]]) * MOST_POINTS // span
            ends = np.append(places[1:] != places[:-1], True)
            ends[0] = True  # the smallest of all
            kept = kept[ends]
        self._before.append(kept // len(options))
        self._picked.append(kept % len(options))
        self.nbytes, self.losses = nbytes[kept], total[kept]

    def __len__(self) -> int:
        return len(self.nbytes)

    def at(self, place: int) -> Choice:
        """The choice at a place of the front."""
        picks, point = [], place
        for before, picked in zip(reversed(self._before), reversed(self._picked), strict=True):
            picks.append(int(picked[point]))
            point = int(before[point])
        return Choice(nbytes=int(self.nbytes[place]), loss=float(self.losses[place]), picks=tuple(reversed(picks)))

    def within(self, nbytes: float) -> Choice | None:
        """The choice of least loss in so many bytes; ``None`` where the smallest is larger."""
        place = int(np.searchsorted(self.nbytes, math.floor(nbytes), side="right")) - 1
        return None if place < 0 else self.at(place)
