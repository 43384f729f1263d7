"""How often a run over blocks writes down how far it is: what it would have to do again, against what writing costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from goldstick.calibration.device_memory import room_for_states
from goldstick.calibration.memory_budget import used_memory
from goldstick.checkpoint.hidden_states import HiddenStates, Specs, bytes_of, write_hidden_states
from goldstick.checkpoint.working_directory import bytes_of_tensors
from goldstick.core.disk_space import require_space

WORK_FOR_WRITING = 9
"""Seconds of work at least for each second of writing, where not every block is written down."""


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
        self._folder, self._stored, self._device, self._most = folder, stored, device, most
        self._least = self._wait = seconds_between(device)
        self._on_device: bool | None = None
        self._last = time.monotonic()

    def require_space(self, checkpoint: int, states: int) -> None:
        """Refuse what would find the disk full hours later.

        Args:
            checkpoint: Bytes of what is made.
            states: Bytes of the hidden states before a block; they go when those behind it are there.

        Raises:
            OutputError: The disk cannot hold them.
        """
        what, held = f"With what blocks are given, {self._folder}", bytes_of_tensors(self._folder)
        require_space(self._folder, checkpoint + 2 * states, what, held)

    def kept(self, number: int, states: Iterator[Tensor], specs: Specs) -> Sequence[Tensor]:
        """The states behind a block, in a file where they are due there, or in memory: the device's if it has room.

        Args:
            number: The block they go into.
            states: The states, batch by batch.
            specs: Their shapes and dtypes.
        """
        if self._on_device is None:
            self._on_device = room_for_states(bytes_of(specs), self._device)
        began = time.monotonic()
        if began - self._last >= self._wait or not self._fit(specs):
            written = write_hidden_states(self._folder, number, states, specs)
            if self._least:
                self._wait = max(self._least, WORK_FOR_WRITING * (time.monotonic() - began))
            return written
        return [state if self._on_device else state.cpu() for state in states]

    def done(self, stored: int) -> None:
        """The journal knows the states in a file: those before them are of no more use."""
        HiddenStates.remove(self._folder, self._stored)
        self._stored, self._last = stored, time.monotonic()

    def _fit(self, specs: Specs) -> bool:
        """Whether memory holds what a block is given and what it gives."""
        return bool(self._on_device) or used_memory() + 2 * bytes_of(specs) <= self._most
