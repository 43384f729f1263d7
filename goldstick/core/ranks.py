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

from goldstick.core.division import balanced, parts_of_upper, windows
from goldstick.core.parcels import packed, size_of, unpacked
from goldstick.core.processes import join, local_count, longest_silence, process_count
from goldstick.errors import GoldstickError, RankError

Value = TypeVar("Value")


class Ranks:
    """The ranks of one run, seen from one of them. :meth:`joined` for those of torchrun; ``Ranks()`` is one alone.

    Every method but :meth:`share` is called by all ranks, in one order.

    Args:
        rank: The number of this one.
        count: How many there are.
        group: Through what they speak; ``None`` for one alone.
        device: Where this one computes; tensors that lie on another's device arrive on it.
        direct: Whether the group sums tensors on devices without the processors' memory (NCCL).

    Attributes:
        rank, count, device: As given.
        sent: Bytes that this one has handed to others, or to a sum, so far; what a network adds to them is its own.
        waited: Seconds it has spent on that, or waiting for others.
    """

    def __init__(
        self, rank: int = 0, count: int = 1, group: Any = None, device: torch.device | None = None, direct: bool = False
    ) -> None:
        self.rank, self.count, self._group = rank, count, group
        self.device, self._direct = device or torch.device("cpu"), direct
        self.sent, self.waited = 0, 0.0
        self._started = time.perf_counter()
        self._seconds: dict[object, float] = {}

    @classmethod
    def joined(cls, device: torch.device | None = None) -> Ranks:
        """Those that torchrun started, or one alone.

        Args:
            device: Where this one computes; the CPU where ``None``.
        """
        device = device or torch.device("cpu")
        if process_count() == 1:
            return cls(device=device)
        join(device)
        direct = device.type == "cuda" and torch.cuda.device_count() >= local_count()  # NCCL wants one for each rank
        backend = "cpu:gloo,cuda:nccl" if direct else "gloo"
        group = distributed.new_group(backend=backend, timeout=longest_silence())
        return cls(distributed.get_rank(), distributed.get_world_size(), group, device, direct)

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

    def add(self, total: Tensor, to: int | None = None, *, upper: bool = False) -> None:
        """Sum whole numbers over all ranks, in place.

        Args:
            total: int64 [...].
            to: The rank that is given the sum, where the others need it not; ``total`` is then lost for these.
            upper: Whether what lies below the diagonal of a square matrix is of no account, and mostly not sent.
        """
        if self.alone:
            return
        assert not total.is_floating_point()  # whose sum would depend on its order
        for part in [total[rows, rows.start :] for rows in parts_of_upper(len(total))] if upper else [total]:
            with self._speaking(part.nbytes):
                here = (part if part.device.type == "cpu" or self._direct else part.cpu()).contiguous()
                if to is None:
                    distributed.all_reduce(here, group=self._group)
                else:
                    distributed.reduce(here, dst=to, group=self._group)
                if here is not part:
                    part.copy_(here)

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
        with self._speaking(size_of(value)):
            distributed.all_gather_object(found, self._outgoing(value), group=self._group)
        return [*map(self._arrived, found)]

    def any(self, said: bool) -> bool:
        """Whether a rank says so."""
        return any(self.gather(said))

    def of(self, value: Value, owner: int = 0) -> Value:
        """What one rank, the first where none is named, has; what the others give is of no account."""
        if self.alone:
            return value
        box: list[Any] = [self._outgoing(value) if self.rank == owner else None]
        with self._speaking(size_of(value) if self.rank == owner else 0):
            distributed.broadcast_object_list(box, src=owner, group=self._group)
        found: Value = self._arrived(box[0])
        return found

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
                        self._hand(item, 0)
                    yield item
            elif self.first:
                for _ in range(count):
                    yield self._taken(owner)

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
                    self._hand(item(number), owner)
                elif owner == self.rank:
                    found.append(self._taken(0))
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
        return balanced(long, self.count)

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
                mine[task] = _tried(do, task), time.perf_counter() - started
        found = []
        for task, owner in enumerate(owners):
            value, seconds = self.of(mine.pop(task, None), owner)  # type: ignore[misc]
            if isinstance(value, GoldstickError):
                raise value
            found.append(value)
            if kinds:
                self._seconds[kinds[task]] = seconds
        return found

    def each(self, costs: Sequence[float], do: Callable[[int], Value]) -> list[Value]:
        """What each of some tasks of known cost gives; handed to all."""
        return self.divided(balanced(costs, self.count), do)

    def in_order(self, costs: Sequence[float], do: Callable[[int], Value], most: float) -> Iterator[Value]:
        """On the first rank what each of some tasks gives, in their order; the others do their part and hand it over.

        Tasks are divided window by window, so that a rank holds what it has done of one window, and no more.

        Args:
            costs: A forecast of each, in any unit; 0 for what is not worth handing over, which the first does itself.
            do: Does the task of a number.
            most: The cost that a window has for each rank; a single task may have more.
        """
        if self.alone:
            yield from map(do, range(len(costs)))
            return
        for window in windows(costs, most * self.count):
            owners = balanced([costs[task] for task in window], self.count)
            own = [task for task, owner in zip(window, owners, strict=True) if owner == self.rank and costs[task]]
            done = {task: _tried(do, task) for task in own}
            for task, owner in zip(window, owners, strict=True):
                if self.first:
                    value = self._taken(owner) if owner else done.pop(task) if task in done else _tried(do, task)
                    if isinstance(value, GoldstickError):
                        raise value
                    yield value
                elif task in done:
                    self._hand(done.pop(task), 0)

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

    def _hand(self, value: Any, to: int) -> None:
        with self._speaking(size_of(value)):
            distributed.send_object_list([self._outgoing(value)], dst=to, group=self._group)

    def _taken(self, owner: int) -> Any:
        box: list[Any] = [None]
        with self._speaking(0):
            distributed.recv_object_list(box, src=owner, group=self._group)
        return self._arrived(box[0])

    def _outgoing(self, value: object) -> Any:
        """What is sent in the place of a value; torch's pickles would name this rank's device."""
        return value if self.device.type == "cpu" else packed(value)

    def _arrived(self, sent: Any) -> Any:
        return sent if self.device.type == "cpu" else unpacked(sent, self.device)

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


def _tried(do: Callable[[int], Value], task: int) -> Value | GoldstickError:
    """What a task gives, or the error that ends the run, to be told to those who wait for it."""
    try:
        return do(task)
    except GoldstickError as error:
        return error
