"""The fits of ggml's quantizers as a torch operator, ``goldstick::fit_blocks``.

Algorithms may not import kernels: they use the operator where it is registered (the extension is built, the weight is
on the CPU), and plain torch otherwise, with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.library import Library

from goldstick.core.compiled import declare
from goldstick.core.element import ELEMENTS
from goldstick.errors import KernelError
from goldstick.kernels import cpu

_library = Library("goldstick", "FRAGMENT")

available = hasattr(cpu._C, "fit_blocks")
"""Whether the compiled module is there and has the fits."""

_THREADED_FROM = 1 << 14
"""Weights below this many take one thread: starting a team costs more than it saves."""


def _fit_blocks(
    kind: str,
    x: Tensor,
    weight: Tensor | None,
    code_max: int,
    shifts: Sequence[float],
    absolute: bool = False,
    element: str = "",
) -> tuple[Tensor, Tensor, Tensor]:
    """Scales and minimums float32 [groups] and codes uint8 [groups, width], as ``algorithms/ggml/fits.py`` has them."""
    for tensor in (x, *([] if weight is None else [weight])):
        if tensor.dtype != torch.float32:
            raise KernelError(f"fit_blocks takes float32, not {tensor.dtype}")
    scale, minimum, codes = _results(x, kind, element)
    cpu._C.fit_blocks(
        kind,
        x.detach().contiguous(),
        None if weight is None else weight.detach().contiguous(),
        scale,
        minimum if kind == "affine" else None,
        None if element else codes,
        code_max,
        torch.tensor(shifts, dtype=torch.float32),
        absolute,
        ELEMENTS[element].table() if element else None,
        torch.get_num_threads() if x.numel() >= _THREADED_FROM else 1,
        cpu.chosen_isa() != "scalar",
    )
    return scale, minimum, codes


def _results(x: Tensor, kind: str, element: str) -> tuple[Tensor, Tensor, Tensor]:
    groups = len(x)
    return (
        x.new_empty(groups),
        x.new_empty(groups if kind == "affine" else 0),
        x.new_empty((0, 0) if element else x.shape, dtype=torch.uint8),
    )


def _fake_fit_blocks(
    kind: str,
    x: Tensor,
    weight: Tensor | None,
    code_max: int,
    shifts: Sequence[float],
    absolute: bool = False,
    element: str = "",
) -> tuple[Tensor, Tensor, Tensor]:
    return _results(x, kind, element)


if available:
    _library.define(
        "fit_blocks(str kind, Tensor x, Tensor? weight, int code_max, float[] shifts, bool absolute=False, "
        "str element='') -> (Tensor scale, Tensor minimum, Tensor codes)"
    )
    _library.impl("fit_blocks", _fit_blocks, "CPU")
    declare("fit_blocks", "cpu")
    torch.library.register_fake("goldstick::fit_blocks", _fake_fit_blocks, lib=_library)
