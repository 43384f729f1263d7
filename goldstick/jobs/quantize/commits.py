"""How often a run over blocks writes down how far it is: what it would have to do again, against what writing costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from goldstick.calibration.memory_budget import used_memory
from goldstick.checkpoint.hidden_states import HiddenStates, Specs, write_hidden_states


def seconds_between(device: torch.device) -> float:
    """The least time from one commit to the next: none on the CPU, whose blocks take longer than their states.

    A GPU is through a block of a model of 8 B in a few seconds, and its hidden states for 512 samples are 9 GB.
    """
    return 0.0 if device.type == "cpu" else 60.0


class Commits:
    """When the hidden states behind a block go to disk, with a word in the journal, and when memory holds them.

    Args:
        folder: The run's working directory.
        stored: The block that the states on disk go into.
        device: Where blocks run.
        most: Bytes that the process may use.
    """

    def __init__(self, folder: Path, stored: int, device: torch.device, most: int) -> None:
        self._folder, self._stored, self._seconds, self._most = folder, stored, seconds_between(device), most
        self._last = time.monotonic()

    def kept(self, number: int, states: Iterator[Tensor], specs: Specs, *, last: bool) -> Sequence[Tensor]:
        """The states behind a block, from a file where they are due there, or in the processor's memory.

        Args:
            number: The block they go into.
            states: The states, batch by batch.
            specs: Their shapes and dtypes.
            last: Whether no block follows.
        """
        if last or time.monotonic() - self._last >= self._seconds or not self._fit(specs):
            return write_hidden_states(self._folder, number, states, specs)
        return [state.cpu() for state in states]

    def done(self, stored: int) -> None:
        """The journal knows the states in a file: those before them are of no more use."""
        HiddenStates.remove(self._folder, self._stored)
        self._stored, self._last = stored, time.monotonic()

    def _fit(self, specs: Specs) -> bool:
        """Whether memory holds what a block is given and what it gives."""
        size = sum(shape.numel() * dtype.itemsize for shape, dtype in specs)
        return used_memory() + 2 * size <= self._most
