"""How benches take time: of what, beside what, and what may be called faster."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from goldstick.kernels import cpu

_LEAST_GAIN = 1.02  # what is called faster; less may be noise


def seconds_of(call: Callable[[], object]) -> float:
    """What a call takes: of one thread its processor time, so that what else runs on the machine counts for less."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    call()
    return max(clock() - start, 1e-9)


def clock_in_words() -> str:
    """What :func:`seconds_of` takes."""
    used = torch.get_num_threads()
    return "1 thread, its processor time" if used == 1 else f"{used} threads"


class PlainRead:
    """A plain loop over memory that no cache holds: the rate that a kernel at the memory's limit would reach."""

    def __init__(self, size: int) -> None:
        self._words = torch.ones(1, max(1, size // 4), dtype=torch.int32)

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
