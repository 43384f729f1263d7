"""The forward passes of all batches through one block, stopped where an input group begins.

Two ways lead to the same numbers. :class:`PausedPasses` lets all batches wait together in front of a group and go on
when it is solved: each token passes each layer once, for the memory of all batches' activations of one block.
:class:`RepeatedPasses` runs the batches one at a time up to the group, as often as they are looked at: the memory of
one batch, for a part of a pass more with every group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from goldstick.calibration.pauses import CapturedInput, PausedPass
from goldstick.core.ranks import Ranks
from goldstick.structure.calls import called_before, run_up_to
from goldstick.structure.trace import map_tensors

Runs = Sequence[Callable[[], Tensor]]
Groups = Sequence[Sequence[nn.Module]]


class Passes(Protocol):
    """Passes through one block; use one object once: ``groups`` to its end, then ``outputs``."""

    ranks: Ranks
    """Who has passes of other batches through the same block, which come to each group together with these."""

    @property
    def together(self) -> bool:
        """Whether what arrives may be held until the group is solved; if not, it is seen one batch at a time."""

    def groups(self) -> Iterator[int]:
        """Numbers of the groups in the order they are reached. Asking for the next says that this one is solved."""

    def captured_inputs(self) -> Iterator[CapturedInput]:
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
        ranks: Who has passes of other batches.
        back: Told of the layer that a pass stood before when it goes on.
    """

    def __init__(
        self,
        runs: Runs,
        groups: Groups,
        again: Collection[int] = (),
        ranks: Ranks | None = None,
        back: Callable[[nn.Module], None] = lambda module: None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self._runs, self._groups, self._called_again = runs, groups, frozenset(again)
        self._pausing, self._back = True, back
        self._number_of = {module: number for number, group in enumerate(groups) for module in group}
        self._passes: list[PausedPass] = []
        self._solved: set[int] = set()
        self._number = -1

    @property
    def together(self) -> bool:
        """See :class:`Passes`."""
        return self._number not in self._called_again

    def groups(self) -> Iterator[int]:
        """See :class:`Passes`."""
        with called_before(self._number_of, self._pause):
            self._passes = [PausedPass(run) for run in self._runs]
            try:
                for one in self._passes:
                    one.go_on()
                while (number := self._next()) is not None:
                    self._number = number
                    yield self._number
                    if self._number in self._called_again:  # whoever takes note of passes has seen others since
                        self.again()
                    here = self._here()
                    self._solved.add(self._number)
                    for index in here:
                        self._passes[index].go_on()
            finally:  # so that none that an error leaves standing ends at some other time
                for one in self._passes:
                    one.abandon()

    def captured_inputs(self) -> Iterator[CapturedInput]:
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
            yield replace(self._passes[index].at[1], batch=index)

    def again(self) -> None:
        """See :class:`Passes`."""
        for index in self._here():
            self._passes[index].abandon()
            self._passes[index] = PausedPass(self._runs[index])
            self._passes[index].go_on()

    def outputs(self) -> Iterator[Tensor]:
        """See :class:`Passes`."""
        for one in self._passes:
            output, one.at = one.at, None
            yield output

    def _next(self) -> int | None:
        """The first group that a pass of any rank waits at; ``None`` where all are done."""
        waiting = min((one.at[0] for one in self._passes if not one.done), default=None)
        return min((number for number in self.ranks.gather(waiting) if number is not None), default=None)

    def _here(self) -> list[int]:
        return [index for index, one in enumerate(self._passes) if not one.done and one.at[0] == self._number]

    def _pause(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._pausing and self._number_of[module] not in self._solved:
            PausedPass.pause((self._number_of[module], CapturedInput(module=module, args=args, kwargs=kwargs)))
            self._back(module)


class RepeatedPasses:
    """One batch at a time, run anew up to the group at hand whenever it is looked at.

    Args:
        runs: A block's forward on each batch.
        groups: The layers of each group, in order of execution.
        again: Numbers of the groups whose layers are called more than once.
        ranks: Who has passes of other batches.
    """

    together = False

    def __init__(self, runs: Runs, groups: Groups, again: Collection[int] = (), ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks()
        self._runs, self._groups, self._called_again = runs, groups, frozenset(again)
        self._number = -1

    def groups(self) -> Iterator[int]:
        """See :class:`Passes`."""
        for number in range(len(self._groups)):
            self._number = number
            yield number

    def captured_inputs(self) -> Iterator[CapturedInput]:
        """See :class:`Passes`."""
        for index, run in enumerate(self._runs):
            if self._number in self._called_again:
                yield from _every_call(run, self._groups[self._number], index)
                continue
            yield from _first_call(run, self._groups[self._number], index)

    def again(self) -> None:
        """Nothing to do: every look starts over."""

    def outputs(self) -> Iterator[Tensor]:
        """See :class:`Passes`."""
        for run in self._runs:
            yield run()


def _first_call(run: Callable[[], Tensor], group: Sequence[nn.Module], batch: int) -> list[CapturedInput]:
    """What the first layer of a group that a pass reaches is given; nothing where it reaches none."""
    found: list[CapturedInput] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(CapturedInput(module=module, args=args, kwargs=kwargs, batch=batch))

    run_up_to(group, run, note)
    return found


def _every_call(run: Callable[[], Tensor], group: Sequence[nn.Module], batch: int) -> list[CapturedInput]:
    """What the first layer of a group that a pass reaches is given, call by call, in copies that do not change."""
    found: list[CapturedInput] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not found or found[0].module is module:
            args, kwargs = map_tensors((args, kwargs), torch.clone)
            found.append(CapturedInput(module=module, args=args, kwargs=kwargs, batch=batch))

    with called_before(group, note):
        run()
    return found
