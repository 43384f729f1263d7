"""The forward passes of all batches through one block, stopped where an input group begins.

Two ways lead to the same numbers. :class:`PausedPasses` lets all batches wait together in front of a group and go on
when it is solved: each token passes each layer once, for the memory of all batches' activations of one block.
:class:`RepeatedPasses` runs the batches one at a time up to the group, as often as they are looked at: the memory of
one batch, for a part of a pass more with every group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch
from greenlet import GreenletExit, getcurrent, greenlet
from torch import Tensor, nn

from goldstick.calibration.pauses import Arrival, called_before
from goldstick.structure.trace import map_tensors

Runs = Sequence[Callable[[], Tensor]]
Groups = Sequence[Sequence[nn.Module]]


class Passes(Protocol):
    """Passes through one block; use one object once: ``groups`` to its end, then ``outputs``."""

    @property
    def together(self) -> bool:
        """Whether what arrives may be held until the group is solved; if not, it is seen one batch at a time."""

    def groups(self) -> Iterator[int]:
        """Numbers of the groups in the order they are reached. Asking for the next says that this one is solved."""

    def arrivals(self) -> Iterator[Arrival]:
        """The batches that reach the group at hand, in their order; as often as wanted. Where its layers are called
        more than once, a batch comes once for each call."""

    def again(self) -> None:
        """Start over up to the group at hand: something before it has changed."""

    def outputs(self) -> Iterator[Tensor]:
        """What the finished block gives, batch by batch."""


class PausedPasses:
    """All batches together, each in a coroutine that pauses before the first layer of a group.

    Args:
        runs: A block's forward on each batch.
        groups: The layers of each group, in order of execution; a pass pauses at the first of a group it reaches.
        again: Numbers of the groups whose layers are called more than once. What they are given is seen in passes of
            their own, which do not pause.
    """

    def __init__(self, runs: Runs, groups: Groups, again: Collection[int] = ()) -> None:
        self._runs, self._groups, self._called_again = runs, groups, frozenset(again)
        self._pausing = True
        self._number_of = {module: number for number, group in enumerate(groups) for module in group}
        self._workers: list[greenlet] = []
        self._at: list[Any] = [None] * len(runs)
        self._solved: set[int] = set()
        self._hub = getcurrent()
        self._number = -1

    @property
    def together(self) -> bool:
        """See :class:`Passes`."""
        return self._number not in self._called_again

    def groups(self) -> Iterator[int]:
        """See :class:`Passes`."""
        with called_before(self._number_of, self._pause):
            self._workers = [greenlet(run) for run in self._runs]
            for index in range(len(self._runs)):
                self._go_on(index)
            while any(not worker.dead for worker in self._workers):
                self._number = min(at[0] for at, worker in zip(self._at, self._workers, strict=True) if not worker.dead)
                yield self._number
                if self._number in self._called_again:  # whoever takes note of passes has seen others since
                    self.again()
                here = self._here()
                self._solved.add(self._number)
                for index in here:
                    self._go_on(index)

    def arrivals(self) -> Iterator[Arrival]:
        """See :class:`Passes`."""
        for index in self._here():
            if self._number in self._called_again:
                self._pausing = False
                try:
                    calls = _every_call(self._runs[index], self._groups[self._number], index)
                finally:
                    self._pausing = True
                yield from calls
                continue
            module, args, kwargs = self._at[index][1]
            yield Arrival(module=module, args=args, kwargs=kwargs, batch=index)

    def again(self) -> None:
        """See :class:`Passes`."""
        for index in self._here():
            self._workers[index].throw(GreenletExit)
            self._workers[index] = greenlet(self._runs[index])
            self._go_on(index)

    def outputs(self) -> Iterator[Tensor]:
        """See :class:`Passes`."""
        for index in range(len(self._runs)):
            output, self._at[index] = self._at[index], None
            yield output

    def _here(self) -> list[int]:
        waiting = [index for index, worker in enumerate(self._workers) if not worker.dead]
        return [index for index in waiting if self._at[index][0] == self._number]

    def _go_on(self, index: int) -> None:
        self._hub = getcurrent()
        self._at[index] = self._workers[index].switch()

    def _pause(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._pausing and self._number_of[module] not in self._solved:
            self._hub.switch((self._number_of[module], (module, args, kwargs)))


class RepeatedPasses:
    """One batch at a time, run anew up to the group at hand whenever it is looked at.

    Args:
        runs: A block's forward on each batch.
        groups: The layers of each group, in order of execution.
        again: Numbers of the groups whose layers are called more than once.
    """

    together = False

    def __init__(self, runs: Runs, groups: Groups, again: Collection[int] = ()) -> None:
        self._runs, self._groups, self._called_again = runs, groups, frozenset(again)
        self._number = -1

    def groups(self) -> Iterator[int]:
        """See :class:`Passes`."""
        for number in range(len(self._groups)):
            self._number = number
            yield number

    def arrivals(self) -> Iterator[Arrival]:
        """See :class:`Passes`."""
        for index, run in enumerate(self._runs):
            if self._number in self._called_again:
                yield from _every_call(run, self._groups[self._number], index)
                continue
            found: list[Arrival] = []

            def stop(
                module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], found: list[Arrival] = found,
                index: int = index,
            ) -> None:  # fmt: skip
                found.append(Arrival(module=module, args=args, kwargs=kwargs, batch=index))
                raise _Reached

            with suppress(_Reached), called_before(self._groups[self._number], stop):
                run()
            yield from found  # the hooks are gone: whoever looks may run the layer

    def again(self) -> None:
        """Nothing to do: every look starts over."""

    def outputs(self) -> Iterator[Tensor]:
        """See :class:`Passes`."""
        for run in self._runs:
            yield run()


def _every_call(run: Callable[[], Tensor], group: Sequence[nn.Module], batch: int) -> list[Arrival]:
    """What the first layer of a group that a pass reaches is given, call by call, in copies that do not change."""
    found: list[Arrival] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not found or found[0].module is module:
            args, kwargs = map_tensors((args, kwargs), torch.clone)
            found.append(Arrival(module=module, args=args, kwargs=kwargs, batch=batch))

    with called_before(group, note):
        run()
    return found


class _Reached(BaseException):
    """Leaves a forward that has come far enough; no ``except Exception`` of a model may swallow it."""
