"""What layers are given, on disk until a layer is rounded."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from goldstick.calibration.spilled import Spilled
from goldstick.core.inputs import InputObserver


class InputStatistic(InputObserver):
    """An observer whose ranges were given first, and whose large tensors can be taken apart from it."""

    def take_apart(self) -> list[Tensor]:
        """The sums and the sample, which it no longer holds."""
        parts = [self._zeros() if self._sums is None else self._sums, *self._sampled]
        self._sums, self._sampled = None, []
        return parts

    def with_parts(self, parts: Sequence[Tensor]) -> InputObserver:
        """A copy that holds what :meth:`take_apart` gave."""
        whole = copy.copy(self)
        whole._sums, *whole._sampled = parts
        whole.memo = {}
        return whole


class KeptInputs(Mapping[str, InputObserver]):
    """Statistics by the names of layers, one in memory at a time."""

    def __init__(self) -> None:
        self._file = Spilled([])
        self._known: dict[str, tuple[InputStatistic, list[int]]] = {}
        self._last: tuple[str, InputObserver] | None = None

    def keep(self, name: str, statistic: InputStatistic) -> None:
        """Keep the statistic of a layer; nothing else is counted in it."""
        self._known[name] = statistic, [self._file.append(part) for part in statistic.take_apart()]

    def __getitem__(self, name: str) -> InputObserver:
        if self._last is None or self._last[0] != name:
            self._last = None
            statistic, places = self._known[name]
            self._last = name, statistic.with_parts([self._file[place] for place in places])
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
