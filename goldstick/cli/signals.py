"""Signals: a program that is asked to end leaves through its clean-up, once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: Seconds in which further signals are taken for the same wish, so that they do not break into the clean-up.
_PATIENCE = 10.0


@contextmanager
def orderly_signals() -> Iterator[None]:
    """Let an interrupt (130), a termination (143) and a terminal that is closed (129) unwind the program.

    What is ignored, as under nohup, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[float] = []

    def leave(number: int, _: FrameType | None) -> None:
        if asked and time.monotonic() - asked[-1] < _PATIENCE:
            return
        asked.append(time.monotonic())
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    found = {number: signal.getsignal(number) for number in _SIGNALS}
    own = [number for number in _SIGNALS if found[number] in (signal.SIG_DFL, signal.default_int_handler)]
    for number in own:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in own if not asked else ():  # one that comes while the interpreter ends is the same wish, too
            signal.signal(number, found[number])
