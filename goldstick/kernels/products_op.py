"""Sums of products of whole numbers as a torch operator, ``goldstick::add_products``.

``core/products.py`` uses it where it is registered (the extension is built, the numbers are on the CPU), and float64
matrix products otherwise, with the same sums.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import Library

from goldstick.core.compiled import declare
from goldstick.kernels import cpu

_library = Library("goldstick", "FRAGMENT")

available = hasattr(cpu._C, "add_products")
"""Whether the compiled module is there and has the sums."""

_THREADED_FROM = 1 << 20
"""Products below this take one thread: starting a team costs more than it saves."""


def _add_products(sums: Tensor, left: Tensor, right: Tensor) -> None:
    """See ``core/products.py``; of sums of ``left`` with itself those below the diagonal may be missing."""
    products = left.shape[0] * left.shape[1] * right.shape[1]
    first = left.contiguous()
    second = first if right is left else right.contiguous()
    threads = torch.get_num_threads() if products >= _THREADED_FROM else 1
    cpu._C.add_products(first, second, sums, threads, cpu.chosen_isa())


def _fake_add_products(sums: Tensor, left: Tensor, right: Tensor) -> None:
    return None


if available:
    _library.define("add_products(Tensor(a!) sums, Tensor left, Tensor right) -> ()")
    _library.impl("add_products", _add_products, "CPU")
    declare("add_products", "cpu")
    torch.library.register_fake("goldstick::add_products", _fake_add_products, lib=_library)
