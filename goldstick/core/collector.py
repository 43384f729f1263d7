"""Python's garbage collector, which goes through all that was imported again and again while more is imported."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: What this process does last.
_AT_THE_END: list[Callable[[], None]] = []


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: for work that makes objects which stay, such as importing torch and transformers.

    Importing the two takes a fifth less processor time so. What has cycles stays until the end, so no large tensors
    should be made inside. In a process of :func:`end_without_collection` no later collection looks through it either:
    the first one would come at once and take a third of a second.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.freeze in _AT_THE_END:
            gc.freeze()
        if before:
            gc.enable()


def end_without_collection() -> None:
    """Let this process end without a last look through all that it imported, which takes a good half second."""
    if gc.freeze not in _AT_THE_END:
        _AT_THE_END.append(gc.freeze)
        atexit.register(gc.freeze)
