"""Tensors that end where memory may no longer be touched."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

import torch
from torch import Tensor

PAGE = mmap.PAGESIZE
NO_ACCESS = 0  # PROT_NONE, which the mmap module does not name


def before_a_forbidden_page(tensor: Tensor) -> tuple[Tensor, Callable[[], None]]:
    """Copy a tensor so that its last byte is the last before a page that must not be touched."""
    size = tensor.numel() * tensor.element_size()
    pages = -(-size // PAGE)
    region = mmap.mmap(-1, (pages + 1) * PAGE)
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region)) + pages * PAGE

    def protect(access: int) -> None:
        if libc.mprotect(ctypes.c_void_p(address), PAGE, access) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    offset = pages * PAGE - size
    guarded = torch.frombuffer(region, dtype=tensor.dtype, count=tensor.numel(), offset=offset).view(tensor.shape)
    guarded.copy_(tensor)
    protect(NO_ACCESS)

    def let_go(held: mmap.mmap = region) -> None:  # for the tensor may be gone before, and its memory with it
        assert not held.closed
        protect(mmap.PROT_READ | mmap.PROT_WRITE)

    return guarded, let_go
