"""Hadamard transforms of inputs as one torch operator, ``goldstick::hadamard``.

``core/input_rotation.py`` defines them and uses the operator where it is registered (the extension is built); C++ gives
the same bits, and plain torch what C++ does not take.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.library import Library

from goldstick.core.input_rotation import LARGEST_TRANSFORM, SMALLEST_TRANSFORM, check_transform, plain_transform
from goldstick.kernels import cpu
from goldstick.kernels.fused import in_cpp
from goldstick.kernels.prepared import runs_at_once

_library = Library("goldstick", "FRAGMENT")

available = hasattr(cpu._C, "hadamard")
"""Whether the compiled module is there and has the transform."""

_THREADED_FROM = 1 << 15
"""Numbers below this many take one thread: starting a team costs more than it saves."""


def hadamard(x: Tensor, size: int) -> Tensor:
    """x·H/√n in blocks of n = ``size`` channels: :func:`~goldstick.core.input_rotation.hadamard_transform`.

    Raises:
        ValueError: n is no power of two, or does not divide the channels.
    """
    if not available:
        return plain_transform(x, size)
    if runs_at_once(x):
        return _hadamard(x, size)
    return cast(Tensor, torch.ops.goldstick.hadamard(x, size))


def _hadamard(x: Tensor, size: int) -> Tensor:
    check_transform(x, size)
    if not in_cpp(x) or not SMALLEST_TRANSFORM <= size <= LARGEST_TRANSFORM:
        return plain_transform(x, size)
    x = x.contiguous()
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    threads = torch.get_num_threads() if x.numel() >= _THREADED_FROM else 1
    cpu._C.hadamard(x.data_ptr(), y.data_ptr(), x.numel() // size, size, cpu.PRECISIONS[x.dtype], threads)
    return y


def _fake_hadamard(x: Tensor, size: int) -> Tensor:
    check_transform(x, size)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep_size(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    ctx.size = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    """H is symmetric: the gradient is turned as the input is."""
    return torch.ops.goldstick.hadamard(gradient, ctx.size), None


if available:
    _library.define("hadamard(Tensor x, int size) -> Tensor")
    _library.impl("hadamard", _hadamard, "CompositeExplicitAutograd")
    torch.library.register_fake("goldstick::hadamard", _fake_hadamard, lib=_library)
    torch.library.register_autograd("goldstick::hadamard", _backward, setup_context=_keep_size, lib=_library)
