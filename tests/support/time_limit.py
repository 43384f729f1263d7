"""A limit on the time a piece of a test may take."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def within(*, seconds: float) -> Iterator[None]:
    """What runs in it is interrupted after some seconds of wall time; for code that hangs, not for timings.

    Raises:
        AssertionError: It took longer. Code that never returns to Python is ended with the process instead.
    """

    def hang(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        raise AssertionError(f"not done after {seconds} seconds")

    former = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
