"""The states of several ranks in one file, also where the first of them has no batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from goldstick.core.ranks import Ranks
from goldstick.jobs.quantize.states_of_ranks import StatesOfRanks


class First(Ranks):
    """The first of three ranks, whose others have states of a float model beside theirs."""

    rank, count, alone, first = 0, 3, False, True  # type: ignore[assignment]

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def gather(self, own: Any) -> list[Any]:
        """Theirs are True."""
        return [own, True, True]

    def to_first(self, own: Iterator[Tensor], counts: Any) -> Iterator[Tensor]:
        """What the others would send, as many as they are asked for."""
        self.asked.append(list(counts))
        yield from own
        for _ in range(sum(counts[1:])):
            yield torch.ones(1)


def test_a_first_rank_without_batches_takes_the_float_models_states_of_the_others() -> None:
    ranks = First()
    assert [len(ranks.share(2, rank)) for rank in range(3)] == [0, 1, 1]
    states = list(StatesOfRanks(ranks, 2, 1).to_first(iter([torch.zeros(1)])))
    assert ranks.asked == [[0, 1, 1], [0, 1, 1]]
    assert [float(state) for state in states] == [1, 1, 0, 1, 1]  # batches, the proof's own, the float model's
