"""Python's garbage collector, which goes through all that was imported again and again while more is imported."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: for work that makes objects which stay, such as importing torch and transformers.

    Importing the two takes a fifth less processor time so. What has cycles stays until the end, so no large tensors
    should be made inside.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def end_without_collection() -> None:
    """Let this process end without a last look through all that it imported, which takes a good half second."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
