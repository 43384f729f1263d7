"""Turning what a layer is given by a Hadamard transform, in every call: the online rotations R4 of QuaRot.

With H the Hadamard matrix of a power of two n (Sylvester's, H·H = n·I), y = x·Wᵀ is (x·H/√n)·(W·H/√n)ᵀ. The weight is
turned once; the input when the layer runs (QuaRot, arXiv 2404.00456; SpinQuant, arXiv 2405.16406).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

_OPERATORS: object = torch.ops.goldstick
#: Widths whose largest power of two is smaller are not worth a transform.
SMALLEST_TRANSFORM = 8
#: The largest transform that runtimes' kernels have.
LARGEST_TRANSFORM = 1 << 15


def transform_size(width: int, limit: int | None = None) -> int:
    """The largest power of two that divides ``width`` and is no larger than ``limit``; 0 where it is not worth it."""
    size = min(width & -width, LARGEST_TRANSFORM, limit or LARGEST_TRANSFORM)
    return size if size >= SMALLEST_TRANSFORM else 0


def hadamard_transform(x: Tensor, size: int) -> Tensor:
    """x·H/√n, block by block of n = ``size`` channels.

    Butterflies of growing distance 1, 2, 4, …: (a, b) → (a + b, a − b), then a product with 1/√n; in float32, rounded
    once to x's dtype. Of float64 all is float64. This order is the definition: kernels give the same bits
    (``goldstick::hadamard``, where it is registered).

    Args:
        x: float [..., channels].
        size: n, a power of two that divides the channels.

    Returns:
        Like x.

    Raises:
        ValueError: n is no power of two, or does not divide the channels.
    """
    if hasattr(_OPERATORS, "hadamard"):
        return cast(Tensor, torch.ops.goldstick.hadamard(x, size))
    return plain_transform(x, size)


def check_transform(x: Tensor, size: int) -> None:
    """Refuse a size that is no power of two, or does not divide the channels, by a ValueError."""
    if size < 1 or size & (size - 1) or x.ndim == 0 or x.shape[-1] % size:
        raise ValueError(
            f"{list(x.shape)[-1:]} channels cannot be turned in blocks of {size}: it takes a power of two."
        )


def plain_transform(x: Tensor, size: int) -> Tensor:
    """:func:`hadamard_transform` in plain torch, which defines its bits."""
    check_transform(x, size)
    wide = x if x.dtype == torch.float64 else x.float()
    values, half = wide.reshape(-1, size), 1
    while half < size:
        pairs = values.reshape(-1, size // (2 * half), 2, half)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        values = torch.stack((first + second, first - second), dim=2)
        half *= 2
    return (values.reshape(wide.shape) * (1 / math.sqrt(size))).to(x.dtype)


@dataclass(frozen=True, kw_only=True)
class InputRotation:
    """A hook that turns what a float layer is given; a packed layer turns by itself what it is given.

    Attributes:
        size: Channels that are mixed with each other.
    """

    size: int

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with their first tensor turned."""
        if args:
            return (hadamard_transform(args[0], self.size), *args[1:]), kwargs
        name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
        return args, kwargs | {name: hadamard_transform(kwargs[name], self.size)}


def rotate_input(module: nn.Module, size: int) -> None:
    """Let a float layer turn what it is given from now on, before all other hooks see it; once, however often called.

    Raises:
        ValueError: It turns it in blocks of another size already.
    """
    found = input_rotation(module)
    if found == 0:
        module.register_forward_pre_hook(InputRotation(size=size), prepend=True, with_kwargs=True)
    elif found != size:
        raise ValueError(f"the layer's input is turned in blocks of {found} already, and not of {size}")


def input_rotation(module: nn.Module) -> int:
    """The size of the transform that a float layer's hook makes; 0 for none."""
    return next((hook.size for hook in module._forward_pre_hooks.values() if isinstance(hook, InputRotation)), 0)


def release_input(module: nn.Module) -> int:
    """Take the hook of a float layer away, and say what its size was; 0 where there is none."""
    for identity, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, InputRotation):
            del module._forward_pre_hooks[identity]
            module._forward_pre_hooks_with_kwargs.pop(identity, None)
            return hook.size
    return 0
