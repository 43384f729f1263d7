"""The blocks of the float model, of which one at a time is in memory."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


class SourceBlocks:
    """The blocks as the source holds them, turned; see :class:`goldstick.calibration.end_gradients.FloatBlocks`.

    Args:
        model: What they are modules of.
        read: Has a block in memory.
        release: Lets go of it.
    """

    def __init__(self, model: nn.Module, read: Callable[[str], None], release: Callable[[str], None]) -> None:
        self._model, self._read, self.release = model, read, release

    def load(self, block: str) -> nn.Module:
        """The block."""
        self._read(block)
        return self._model.get_submodule(block)
