"""The hidden states between two blocks, of which each rank has those of its batches, and the first rank the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from goldstick.calibration.device_memory import room_for_states
from goldstick.checkpoint.hidden_states import HiddenStates, Specs
from goldstick.core.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """Where a run over the blocks begins, as the first rank tells the others.

    Attributes:
        blocks_done: Blocks that an earlier run has finished.
        anew: Whether there was none.
        cache: What it found out about the KV cache.
    """

    blocks_done: int = 0
    anew: bool = True
    cache: Mapping[str, Any] = field(default_factory=dict)


class StatesOfRanks:
    """Who has which hidden states. In the file lie those of all batches, of the proof, and of the batches in the float
    model, where that runs beside; so it is one file for any number of ranks. A rank that is not the first holds its
    own in memory.

    Args:
        ranks: The ranks.
        batches: How many batches there are.
        proof: How many passes the proof makes, all of them on the first rank.
    """

    def __init__(self, ranks: Ranks, batches: int, proof: int) -> None:
        self._ranks, self._batches, self._proof = ranks, batches, proof
        self._on_device: bool | None = None
        self._counts = [len(ranks.share(batches, rank)) for rank in range(ranks.count)]

    def to_first(self, outputs: Iterator[Tensor]) -> Iterator[Tensor]:
        """On the first rank, all states as the file has them; on the others, their own again.

        Args:
            outputs: The states of this rank: of its batches, of the proof, of its batches in the float model.
        """
        if self._ranks.alone:
            return outputs
        held = list(outputs)  # to their end: on their way the ranks wait for one another
        own, proof = self._counts[self._ranks.rank], self._proof if self._ranks.first else 0
        beside = any(self._ranks.gather(len(held) > own + proof))  # a rank without batches has none to tell by
        floats = self._counts if beside else [0] * self._ranks.count
        return chain(
            self._ranks.to_first(iter(held[:own]), self._counts),
            held[own : own + proof],
            self._ranks.to_first(iter(held[own + proof :]), floats),
        )

    def specs(self, states: Sequence[Tensor]) -> Specs:
        """Shapes and dtypes of all states of all ranks, as the file has them; called by all of them."""
        each = self._ranks.gather([(state.shape, state.dtype) for state in states])
        found: list[tuple[torch.Size, torch.dtype]] = []
        for specs, count in zip(each, self._counts, strict=True):
            found += specs[:count]
        found += each[0][self._counts[0] : self._counts[0] + self._proof]
        for rank, (specs, count) in enumerate(zip(each, self._counts, strict=True)):
            found += specs[count + (0 if rank else self._proof) :]
        return found

    def own(self, states: Sequence[Tensor]) -> Sequence[Tensor]:
        """Those of the first rank among all, each on its device when it is asked for."""
        if self._ranks.alone:
            return Places(states, range(len(states)), self._ranks.device)
        mine, proof = self._counts[0], self._proof
        floats = mine if len(states) > self._batches + proof else 0
        start = self._batches + proof
        places = [*range(mine), *range(self._batches, start), *range(start, start + floats)]
        return Places(states, places, self._ranks.device)

    def held(self, states: Sequence[Tensor]) -> Sequence[Tensor]:
        """States that a rank holds in memory, its device's where it has room; each is there when it is asked for."""
        if self._on_device is None:
            self._on_device = room_for_states(sum(state.nbytes for state in states), self._ranks.device)
        kept = [state if self._on_device else state.cpu() for state in states]
        return Places(kept, range(len(states)), self._ranks.device)

    def given(self, states: HiddenStates | None) -> Sequence[Tensor]:
        """The states of this rank, out of a file that the first one has.

        Args:
            states: That file; ``None`` on the others.
        """
        if self._ranks.alone:
            return []
        whole = self._ranks.of(len(states) if states is not None else 0)
        found = self._handed_out(states, 0)
        start = self._batches + self._proof
        return self.held(found + (self._handed_out(states, start) if whole > start else []))

    def _handed_out(self, states: HiddenStates | None, start: int) -> list[Tensor]:
        def item(number: int) -> Tensor:
            assert states is not None  # the first rank hands out
            return states[start + number]

        return self._ranks.from_first(item, self._counts)


class Places(Sequence[Tensor]):
    """Some of a row of tensors, in an order of their own, each read when it is asked for.

    Args:
        states: The row.
        places: Where they lie in it.
        device: Where they are wanted.
    """

    def __init__(self, states: Sequence[Tensor], places: Sequence[int], device: torch.device) -> None:
        self._states, self._places, self._device = states, places, device

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]  # slices are of no use here
        return self._states[self._places[index]].to(self._device)
