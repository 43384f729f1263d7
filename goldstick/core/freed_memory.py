"""Memory that was freed and that the C library keeps for itself."""

from __future__ import annotations

import ctypes

#: glibc's name for the size above which a block is memory of its own, given back as soon as it is freed.
_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 25
_SMALL = 1 << 18


def give_large_blocks_back(*, scarce: bool = False) -> None:
    """From now on, let every freed block of 32 MiB or more go back to the system at once; of 256 KiB if it is scarce.

    Smaller ones are kept for reuse, since fresh pages cost a forward pass a good part of its time. What is kept goes
    back with :func:`return_freed_memory`, between the steps of a run; but what lies scattered between smaller blocks
    is filled and left again in ever other ways, and takes half as much again as is in use.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_M_MMAP_THRESHOLD, _SMALL if scarce else _LARGE)


def return_freed_memory() -> None:
    """Give freed memory back to the system, before something else needs it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def make_room(size: int) -> None:
    """Give freed memory back before ``size`` bytes are taken, if they are many: looking for it costs milliseconds."""
    if size >= _LARGE:
        return_freed_memory()
