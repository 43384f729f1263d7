"""What lies between the products of a decoder block as torch operators: a norm, a gated activation.

On the CPU, for floats of 16 and 32 bits, C++ does each in one pass over memory; elsewhere plain torch does the same
arithmetic, to the rounding of sums.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import Library

from goldstick.errors import KernelError
from goldstick.kernels import cpu
from goldstick.kernels.prepared import runs_at_once

_library = Library("goldstick", "FRAGMENT")
_library.define("rms_norm(Tensor x, Tensor weight, float epsilon) -> Tensor")
_library.define("gated_silu(Tensor x) -> Tensor")

_THREADED_FROM = 1 << 15
"""Numbers below this many take one thread: starting a team costs more than it saves."""


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """weight · round(x / √(mean x² + ε)), the mean over the last dimension, computed in float32.

    Args:
        x: float [..., channels].
        weight: [channels], of the dtype of x; to it is rounded.
        epsilon: What is added to the mean.

    Raises:
        KernelError: Dtypes or shapes do not fit.
    """
    if runs_at_once(x) and not weight.requires_grad:
        return _rms_norm(x, weight, epsilon)
    return cast(Tensor, torch.ops.goldstick.rms_norm(x, weight, epsilon))


def gated_silu(x: Tensor) -> Tensor:
    """silu(gate) · up for rows [gate, up] of twice as many channels; both operations rounded to the dtype of x.

    Args:
        x: float [..., 2 · channels].

    Raises:
        KernelError: The number of channels is odd.
    """
    if runs_at_once(x):
        return _gated_silu(x)
    return cast(Tensor, torch.ops.goldstick.gated_silu(x))


def in_cpp(x: Tensor) -> bool:
    """Whether there is a C++ kernel for a tensor's device and dtype."""
    return cpu._C is not None and x.is_cpu and x.dtype in cpu.PRECISIONS


def _check_norm(x: Tensor, weight: Tensor) -> None:
    if x.dtype != weight.dtype or x.ndim == 0 or weight.shape != x.shape[-1:]:
        raise KernelError(
            f"rms_norm of {list(x.shape)} in {x.dtype} takes a weight of its last dimension and dtype, not "
            f"{list(weight.shape)} in {weight.dtype}"
        )


def _check_gate(x: Tensor) -> None:
    if x.ndim == 0 or x.shape[-1] % 2:
        raise KernelError(f"gated_silu takes gates and as many ups, not {list(x.shape)}")


def _rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    _check_norm(x, weight)
    x = x.contiguous()
    if not in_cpp(x) or not weight.is_cpu:
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype)
    weight = weight.contiguous()
    y, columns = torch.empty_like(x, memory_format=torch.contiguous_format), x.shape[-1]
    cpu._C.rms_norm(
        x.data_ptr(),
        weight.data_ptr(),
        y.data_ptr(),
        x.numel() // max(columns, 1),
        columns,
        epsilon,
        cpu.PRECISIONS[x.dtype],
        torch.get_num_threads() if x.numel() >= _THREADED_FROM else 1,
    )
    return y


def _gated_silu(x: Tensor) -> Tensor:
    _check_gate(x)
    x, columns = x.contiguous(), x.shape[-1] // 2
    if not in_cpp(x):
        gate, up = x.split(columns, dim=-1)  # type: ignore[no-untyped-call]
        return F.silu(gate) * cast(Tensor, up)
    y = x.new_empty((*x.shape[:-1], columns))
    cpu._C.gated_silu(
        x.data_ptr(),
        y.data_ptr(),
        y.numel() // max(columns, 1),
        columns,
        cpu.PRECISIONS[x.dtype],
        torch.get_num_threads() if y.numel() >= _THREADED_FROM else 1,
    )
    return y


def _fake_rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    _check_norm(x, weight)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _fake_gated_silu(x: Tensor) -> Tensor:
    _check_gate(x)
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


_library.impl("rms_norm", _rms_norm, "CompositeExplicitAutograd")
_library.impl("gated_silu", _gated_silu, "CompositeExplicitAutograd")
torch.library.register_fake("goldstick::rms_norm", _fake_rms_norm, lib=_library)
torch.library.register_fake("goldstick::gated_silu", _fake_gated_silu, lib=_library)
