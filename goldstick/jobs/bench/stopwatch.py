"""How benches take time: of what, beside what, and what may be called faster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from goldstick.core.counts import counted
from goldstick.kernels import cpu

_LEAST_GAIN = 1.02  # what is called faster; less may be noise


def seconds_of(call: Callable[[], object]) -> float:
    """What a call takes: of one thread its processor time, so that what else runs on the machine counts for less."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    call()
    return max(clock() - start, 1e-9)


def in_turn(
    timed: Mapping[str, Callable[[], float]], seconds: float, between: Callable[[], object] = bool
) -> list[dict[str, float]]:
    """Rounds in which each is timed once, for so many seconds and three at least; one before them warms up.

    Args:
        timed: By name, what runs something and returns the seconds that it took.
        seconds: For all rounds.
        between: Called after each round.
    """
    taken: list[dict[str, float]] = []
    started = time.perf_counter()
    while len(taken) < 4 or time.perf_counter() - started < seconds:
        taken.append({name: one() for name, one in timed.items()})
        between()
    return taken[1:]


def clock_in_words() -> str:
    """What :func:`seconds_of` takes."""
    used = torch.get_num_threads()
    return counted(used, "thread") + (", its processor time" if used == 1 else "")


def beyond_caches(caches: Path = Path("/sys/devices/system/cpu")) -> int:
    """Bytes of which no cache keeps a part from one pass to the next: twice what all caches of the machine hold.

    They are 100 MiB at least (and where Linux does not say what there is), at most an eighth of the memory.
    """
    held = {}
    for size in caches.glob("cpu[0-9]*/cache/index*/size"):
        which = tuple((size.parent / name).read_text() for name in ("level", "type", "shared_cpu_list"))
        held[which] = int(size.read_text().strip().removesuffix("K")) << 10
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(100 << 20, min(2 * sum(held.values()), memory // 8))


class PlainRead:
    """A plain loop over memory that no cache holds: the rate that a kernel at the memory's limit would reach.

    What was in the caches is not, after it.
    """

    def __init__(self) -> None:
        self._words = torch.ones(1, beyond_caches() // 4, dtype=torch.int32)

    def bytes_per_second(self) -> float:
        """The rate of one pass."""
        return self._words.nbytes / seconds_of(self._pass)

    def _pass(self) -> object:
        if cpu._C is None:
            return self._words.sum()
        return cpu._C.read_words(self._words, torch.get_num_threads())


def verdict(times_float: float) -> str:
    """``faster``, ``as fast`` or ``SLOWER``, against float, from the ratio of times."""
    if times_float >= _LEAST_GAIN:
        return "faster"
    return "as fast" if times_float > 1 / _LEAST_GAIN else "SLOWER"
