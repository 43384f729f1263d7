"""The forward passes of all batches through one block, stopped where an input group begins.

Two ways lead to the same numbers. :class:`PausedPasses` lets all batches wait together in front of a group and go on
when it is solved: each token passes each layer once, for the memory of all batches' activations of one block.
:class:`RepeatedPasses` runs the batches one at a time up to the group, as often as they are looked at: the memory of
one batch, for a part of a pass more with every group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet
from torch import Tensor, nn

from goldstick.calibration.pauses import Arrival

Runs = Sequence[Callable[[], Tensor]]
Groups = Sequence[Sequence[nn.Module]]


class Passes(Protocol):
    """Passes through one block; use one object once: ``groups`` to its end, then ``outputs``."""

    #: Whether what arrives may be held until the group is solved; if not, it is seen one batch at a time.
    together: bool

    def groups(self) -> Iterator[int]:
        """Numbers of the groups in the order they are reached. Asking for the next says that this one is solved."""

    def arrivals(self) -> Iterator[Arrival]:
        """The batches that reach the group at hand, in their order; as often as wanted."""

    def again(self) -> None:
        """Start over up to the group at hand: something before it has changed."""

    def outputs(self) -> Iterator[Tensor]:
        """What the finished block gives, batch by batch."""


class PausedPasses:
    """All batches together, each in a coroutine that pauses before the first layer of a group.

    Args:
        runs: A block's forward on each batch.
        groups: The layers of each group, in order of execution; a pass pauses at the first of a group it reaches.
    """

    together = True

    def __init__(self, runs: Runs, groups: Groups) -> None:
        self._runs, self._groups = runs, groups
        self._number_of = {module: number for number, group in enumerate(groups) for module in group}
        self._workers: list[greenlet] = []
        self._at: list[Any] = [None] * len(runs)
        self._solved: set[int] = set()
        self._hub = getcurrent()
        self._number = -1

    def groups(self) -> Iterator[int]:
        """See :class:`Passes`."""
        handles = [module.register_forward_pre_hook(self._pause, with_kwargs=True) for module in self._number_of]
        try:
            self._workers = [greenlet(run) for run in self._runs]
            for index in range(len(self._runs)):
                self._go_on(index)
            while any(not worker.dead for worker in self._workers):
                self._number = min(at[0] for at, worker in zip(self._at, self._workers, strict=True) if not worker.dead)
                yield self._number
                here = self._here()
                self._solved.add(self._number)
                for index in here:
                    self._go_on(index)
        finally:
            for handle in handles:
                handle.remove()

    def arrivals(self) -> Iterator[Arrival]:
        """See :class:`Passes`."""
        for index in self._here():
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
        if self._number_of[module] not in self._solved:
            self._hub.switch((self._number_of[module], (module, args, kwargs)))


class RepeatedPasses:
    """One batch at a time, run anew up to the group at hand whenever it is looked at.

    Args:
        runs: A block's forward on each batch.
        groups: The layers of each group, in order of execution.
    """

    together = False

    def __init__(self, runs: Runs, groups: Groups) -> None:
        self._runs, self._groups = runs, groups
        self._number = -1

    def groups(self) -> Iterator[int]:
        """See :class:`Passes`."""
        for number in range(len(self._groups)):
            self._number = number
            yield number

    def arrivals(self) -> Iterator[Arrival]:
        """See :class:`Passes`."""
        for index, run in enumerate(self._runs):
            found: list[Arrival] = []

            def stop(
                module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], found: list[Arrival] = found,
                index: int = index,
            ) -> None:  # fmt: skip
                found.append(Arrival(module=module, args=args, kwargs=kwargs, batch=index))
                raise _Reached

            group = self._groups[self._number]
            handles = [module.register_forward_pre_hook(stop, with_kwargs=True) for module in group]
            try:
                run()
            except _Reached:
                pass
            finally:
                for handle in handles:
                    handle.remove()
            yield from found  # the hooks are gone: whoever looks may run the layer

    def again(self) -> None:
        """Nothing to do: every look starts over."""

    def outputs(self) -> Iterator[Tensor]:
        """See :class:`Passes`."""
        for run in self._runs:
            yield run()


class _Reached(BaseException):
    """Leaves a forward that has come far enough; no ``except Exception`` of a model may swallow it."""
