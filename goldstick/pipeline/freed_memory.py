"""Memory that was freed and that the C library keeps for itself."""

from __future__ import annotations

import ctypes


def return_freed_memory() -> None:
    """Give freed memory back to the system, before something else needs it; glibc keeps it otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
