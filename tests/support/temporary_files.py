"""How much lies in temporary files, beside how much was asked for."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
from torch import Tensor

from goldstick.calibration.spilled import Spilled


class TemporaryFiles:
    """A disk that has so much free, and what tensors take there.

    Args:
        monkeypatch: Undoes it.
        free: Bytes that are free, as long as nobody changes it.

    Attributes:
        free: Bytes that are said to be free.
        peak: Bytes of all tensors that waited there together, at most.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.free, self.peak = free, 0
        gc.collect()
        gc.freeze()  # what was there before need not be looked through at each write
        self._sizes = weakref.WeakKeyDictionary[Spilled, int]()
        write = Spilled._write

        def counted(spilled: Spilled, tensor: Tensor) -> None:
            write(spilled, tensor)
            self._sizes[spilled] = self._sizes.get(spilled, 0) + tensor.nbytes
            self.peak = max(self.peak, self.held())

        monkeypatch.setattr(Spilled, "_write", counted)
        monkeypatch.setattr("goldstick.core.disk_space.shutil", SimpleNamespace(disk_usage=lambda _: self))

    def held(self) -> int:
        """Bytes of the tensors that wait there now."""
        gc.collect()
        return sum(self._sizes.values())
