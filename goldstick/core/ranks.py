"""Ranks: the processes that torchrun started for one run, and all that they say to each other.

Whoever works on a part of something asks :class:`Ranks` which part is its own, and for sums over all. Alone, a process
has every part and a sum is what it has itself, so the code around is the same for one process and for many.

What is summed here is whole numbers, or is handed over piece by piece and added up in one order by whoever asked:
nothing depends on how many ranks there are.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as distributed
from torch import Tensor

from goldstick.core.processes import join, longest_silence, process_count
from goldstick.errors import GoldstickError, RankError

Value = TypeVar("Value")

#: How many times the median rank's work a rank has to take to be called slow, and the least seconds it must be behind.
_SLOW, _SLOW_SECONDS = 1.5, 10.0


class Ranks:
    """The ranks of one run, seen from one of them. :meth:`joined` for those of torchrun; ``Ranks()`` is one alone.

    Every method but :meth:`share` is called by all ranks, in one order.

    Args:
        rank: The number of this one.
        count: How many there are.
        group: Through what they speak; ``None`` for one alone.

    Attributes:
        rank: The number of this one.
        count: How many there are.
        sent: Bytes that this one has handed to others, or to a sum, so far; what a network adds to them is its own.
        waited: Seconds it has spent on that, or waiting for others.
    """

    def __init__(self, rank: int = 0, count: int = 1, group: Any = None) -> None:
        self.rank, self.count, self._group = rank, count, group
        self.sent, self.waited = 0, 0.0
        self._started = time.perf_counter()
        self._seconds: dict[object, float] = {}

    @classmethod
    def joined(cls) -> Ranks:
        """Those that torchrun started, or one alone."""
        if process_count() == 1:
            return cls()
        join(torch.device("cpu"))
        group = distributed.new_group(backend="gloo", timeout=longest_silence())
        return cls(distributed.get_rank(), distributed.get_world_size(), group)

    @property
    def alone(self) -> bool:
        """Whether there is but one."""
        return self.count == 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def share(self, items: int, rank: int | None = None) -> range:
        """Which of some items are a rank's own (this one's, where none is named): neighbours, in their order."""
        rank = self.rank if rank is None else rank
        return range(items * rank // self.count, items * (rank + 1) // self.count)

    def add(self, total: Tensor, to: int | None = None) -> None:
        """Sum whole numbers over all ranks, in place.

        Args:
            total: int64 [...].
            to: The rank that is given the sum, where the others need it not; ``total`` is then lost for these.
        """
        if self.alone:
            return
        assert not total.is_floating_point()  # whose sum would depend on its order
        with self._speaking(total.nbytes):
            if to is None:
                distributed.all_reduce(total, group=self._group)
            else:
                distributed.reduce(total, dst=to, group=self._group)

    def extremes(self, lowest: Tensor, highest: Tensor) -> None:
        """The least and the greatest values over all ranks, element by element, in place."""
        if self.alone:
            return
        with self._speaking(lowest.nbytes + highest.nbytes):
            distributed.all_reduce(lowest, distributed.ReduceOp.MIN, group=self._group)
            distributed.all_reduce(highest, distributed.ReduceOp.MAX, group=self._group)

    def gather(self, value: Value) -> list[Value]:
        """What each rank has, in their order; the same list on all of them."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.count
        with self._speaking(_size(value)):
            distributed.all_gather_object(found, value, group=self._group)
        return found

    def any(self, said: bool) -> bool:
        """Whether a rank says so."""
        return any(self.gather(said))

    def of(self, value: Value, owner: int = 0) -> Value:
        """What one rank, the first where none is named, has; what the others give is of no account."""
        if self.alone:
            return value
        box = [value if self.rank == owner else None]
        with self._speaking(_size(value) if self.rank == owner else 0):
            distributed.broadcast_object_list(box, src=owner, group=self._group)
        found: Any = box[0]
        return found  # type: ignore[no-any-return]

    def to_first(self, items: Iterator[Tensor], counts: Sequence[int]) -> Iterator[Tensor]:
        """On the first rank, every rank's tensors, in their order, one at a time; on the others, their own again.

        Args:
            items: Tensors of this rank.
            counts: How many each rank has.
        """
        for owner, count in enumerate(counts):
            if owner == self.rank or self.alone:
                for _ in range(count):
                    item = next(items)
                    if owner:
                        with self._speaking(item.nbytes):
                            distributed.send_object_list([item], dst=0, group=self._group)
                    yield item
            elif self.first:
                for _ in range(count):
                    box: list[Any] = [None]
                    with self._speaking(0):
                        distributed.recv_object_list(box, src=owner, group=self._group)
                    yield box[0]

    def from_first(self, item: Callable[[int], Tensor], counts: Sequence[int]) -> list[Tensor]:
        """The tensors of a row that belong to a rank: the first has them all, and gives each its own.

        Args:
            item: On the first rank, the tensor of a number in the row.
            counts: How many of the row belong to each rank, in their order.
        """
        start = counts[0]
        found = [item(number) for number in range(start)] if self.first else []
        for owner, count in enumerate(counts[1:], start=1):
            for number in range(start, start + count):
                if self.first:
                    value = item(number)
                    with self._speaking(value.nbytes):
                        distributed.send_object_list([value], dst=owner, group=self._group)
                elif owner == self.rank:
                    box: list[Any] = [None]
                    with self._speaking(0):
                        distributed.recv_object_list(box, src=0, group=self._group)
                    found.append(box[0])
            start += count
        return found

    def owners(self, kinds: Sequence[object], costs: Sequence[float]) -> list[int]:
        """Which rank does which of some tasks: the longest first, each to the rank that has least to do so far.

        Args:
            kinds: What kind each is; one that was done before is known to take what it took then.
            costs: A forecast of each, in any unit, for kinds that were not.
        """
        known = [self._seconds.get(kind) for kind in kinds]
        rates = [seconds / cost for seconds, cost in zip(known, costs, strict=True) if seconds is not None and cost]
        rate = statistics.median(rates) if rates else 1.0
        long = [cost * rate if seconds is None else seconds for seconds, cost in zip(known, costs, strict=True)]
        busy, owners = [0.0] * self.count, [0] * len(long)
        for task in sorted(range(len(long)), key=lambda task: -long[task]):
            # The first also writes: of equals it comes last.
            owners[task] = min(range(self.count - 1, -1, -1), key=lambda rank: busy[rank])
            busy[owners[task]] += long[task]
        return owners

    def divided(self, owners: Sequence[int], do: Callable[[int], Value], kinds: Sequence[object] = ()) -> list[Value]:
        """What each of some tasks gives, done by its owner and handed to all.

        Args:
            owners: The rank that does each, from :meth:`owners`.
            do: Does the task of a number.
            kinds: What kind each is, to know how long it took.
        """
        if self.alone:
            return [do(task) for task in range(len(owners))]
        mine: dict[int, tuple[Value | GoldstickError, float]] = {}
        for task, owner in enumerate(owners):
            if owner == self.rank:
                started = time.perf_counter()
                try:
                    done: Value | GoldstickError = do(task)
                except GoldstickError as error:  # it ends the run, on every rank
                    done = error
                mine[task] = done, time.perf_counter() - started
        found = []
        for task, owner in enumerate(owners):
            value, seconds = self.of(mine.pop(task, None), owner)  # type: ignore[misc]
            if isinstance(value, GoldstickError):
                raise value
            found.append(value)
            if kinds:
                self._seconds[kinds[task]] = seconds
        return found

    def account(self) -> dict[str, Any]:
        """How long each rank worked and waited, and what it sent; to be asked once, at the end.

        Returns:
            ``work_seconds``, ``wait_seconds`` and ``sent_bytes`` of each rank; nothing for one alone.
        """
        if self.alone:
            return {}
        whole = time.perf_counter() - self._started
        found = self.gather((whole - self.waited, self.waited, self.sent))
        names = ("work_seconds", "wait_seconds", "sent_bytes")
        return dict(zip(names, ([*values] for values in zip(*found, strict=True)), strict=True))

    @contextmanager
    def _speaking(self, nbytes: int) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        except RuntimeError as error:  # a connection that broke, or that said nothing for too long
            raise RankError(
                f"Rank {self.rank} of {self.count} cannot reach the others any more: one of them was ended, failed, or "
                "cannot be reached over the network; its own message, or torchrun's, says which. Start all of them "
                "again, as many as you like, and give --resume to go on after the last finished block."
            ) from error
        finally:
            self.waited += time.perf_counter() - started
            self.sent += nbytes


def slow_ranks(work_seconds: Sequence[float]) -> list[str]:
    """A sentence for each rank that took far longer for its work than the median of all."""
    usual = statistics.median_low(work_seconds) if work_seconds else 0.0
    return [
        f"rank {number} worked {seconds:.0f} s, and the ranks' median is {usual:.0f} s: its machine is slower, or busy "
        "with something else, and the others waited for it"
        for number, seconds in enumerate(work_seconds)
        if seconds > _SLOW * usual and seconds - usual > _SLOW_SECONDS
    ]


def _size(value: object) -> int:
    """Bytes of the tensors in a value, nearly what it takes on its way."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return sum(map(_size, vars(value).values())) if hasattr(value, "__dict__") else 0
