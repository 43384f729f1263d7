"""Memory that was freed and that the C library keeps for itself."""

from __future__ import annotations

import ctypes

#: glibc's name for the size above which a block is memory of its own, given back as soon as it is freed.
_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 20


def give_large_blocks_back() -> None:
    """From now on, let every freed block of a megabyte or more go back to the system at once.

    glibc raises that size by itself, up to 32 MiB, to whatever was freed before. The matrices of a model then share
    memory with small things that outlive them, and the process grows with every block of layers it has seen.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_M_MMAP_THRESHOLD, _LARGE)


def return_freed_memory() -> None:
    """Give freed memory back to the system, before something else needs it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
