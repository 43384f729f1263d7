"""A limit on the time a piece of a test may take."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def within(*, seconds: float) -> Iterator[None]:
    """What runs in it is interrupted after some seconds of processor time; for code that hangs, not for timings.

    So it does not hang on what else the machine does. What waits without computing is interrupted after twenty times
    as long.

    Raises:
        AssertionError: It took longer. Code that never returns to Python is ended with the process instead.
    """

    def hang(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        raise AssertionError(f"not done after {seconds} seconds")

    former = [signal.signal(number, hang) for number in (signal.SIGALRM, signal.SIGPROF)]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 20 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in zip((signal.SIGALRM, signal.SIGPROF), former, strict=True):
            signal.signal(number, handler)
