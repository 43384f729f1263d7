"""The choice between ranges as a torch operator, ``goldstick::search_ranges``: C++ on the CPU, Triton on a GPU.

Algorithms use it where ``core/compiled.py`` has it for the device, and plain torch otherwise, with the same choice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from goldstick.core.compiled import declare
from goldstick.core.element import ELEMENTS
from goldstick.errors import KernelError
from goldstick.kernels import cpu, triton

_library = Library("goldstick", "FRAGMENT")

available = hasattr(cpu._C, "search_ranges")
"""Whether the compiled module is there and has the search."""

_THREADED_FROM = 1 << 14
"""Weights below this many take one thread: starting a team costs more than it saves."""


def _search_ranges(
    grouped: Tensor, scale: Tensor, zero: Tensor | None, importance: Tensor | None, bits: int, element: str = ""
) -> Tensor:
    """The first candidate of least error, int64 [rows, groups], as ``algorithms/range_error.py`` finds it."""
    if grouped.dtype != torch.float32 or scale.dtype != torch.float32:
        raise KernelError(f"search_ranges takes float32, not weights in {grouped.dtype} and scales in {scale.dtype}")
    best = torch.empty(grouped.shape[:2], dtype=torch.int64)
    cpu._C.search_ranges(
        grouped.detach().contiguous(),
        scale.detach().contiguous(),
        None if zero is None else zero.detach().contiguous(),
        None if importance is None else importance.detach().contiguous(),
        best,
        bits,
        torch.get_num_threads() if grouped.numel() >= _THREADED_FROM else 1,
        cpu.chosen_isa() != "scalar",
        **(_numbers(element) if element else {}),
    )
    return best


def _numbers(name: str) -> dict[str, Any]:
    """The numbers of a float element: floats by their bits, others as a table."""
    element = ELEMENTS[name]
    if not element.signed:
        return {"table": element.table(), "edges": element.edges()}
    least = element.values[1] * 2.0**element.mantissa_bits
    return {"mantissa_bits": element.mantissa_bits, "least_normal": least, "largest": element.largest}


def _fake_search_ranges(
    grouped: Tensor, scale: Tensor, zero: Tensor | None, importance: Tensor | None, bits: int, element: str = ""
) -> Tensor:
    return torch.empty(grouped.shape[:2], dtype=torch.int64, device=grouped.device)


_library.define(
    "search_ranges(Tensor grouped, Tensor scale, Tensor? zero, Tensor? importance, int bits, str element='') -> Tensor"
)
torch.library.register_fake("goldstick::search_ranges", _fake_search_ranges, lib=_library)
_library.impl("search_ranges", triton.search_ranges, "CUDA")
declare("search_ranges", "cuda", triton.compiles_for)
if available:
    _library.impl("search_ranges", _search_ranges, "CPU")
    declare("search_ranges", "cpu")
