"""Convolutions of quantized weights: what they compute, and the operator ``goldstick::quantized_convolution``.

    y = f(x) ∗ w + bias

w is the weight of ``kernels/base.py``, [out, in / groups · kernel] as torch flattens a kernel. f rounds the input as
for linear layers. The one scale of ``int8-token`` is that of an image (or a sequence): a sample is what the tokens of a
convolution cannot be told apart in. ``int8-tensor`` has one scale, and perhaps one zero, for all inputs. Padding is 0
before and after rounding.

The reference rounds and dequantizes. The CPU kernels multiply codes as they are, where the weight is symmetric with one
scale for each output channel: a float input is rounded to 16 bits then, with one scale for each sample.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import Library

from goldstick.core.rounded_inputs import fake_quantize_per_tensor, fake_quantize_per_token
from goldstick.errors import KernelError
from goldstick.kernels.base import refuse_gradients

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d}

_library = Library("goldstick", "FRAGMENT")
_library.define(
    "quantized_convolution(Tensor x, Tensor packed, Tensor scale, Tensor? zero, Tensor? bias, "
    "int bits, int group_size, str activation, int in_channels, int groups, int[] kernel, int[] stride, int[] padding, "
    "int[] dilation, Tensor? input_scale=None, Tensor? input_zero=None) -> Tensor"
)


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The sizes of a convolution along one or two sides.

    Attributes:
        in_channels: Channels of the input.
        groups: In how many groups it computes.
        kernel, stride, padding, dilation: For each side.
    """

    in_channels: int
    groups: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def columns(self) -> int:
        """Columns of the matrix of the weight."""
        found = self.in_channels // self.groups
        for side in self.kernel:
            found *= side
        return found

    def sides_after(self, sides: Sequence[int]) -> tuple[int, ...]:
        """The sides of an output, from those of an input."""
        return tuple(
            (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for side, kernel, stride, padding, dilation in zip(
                sides, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )


def rounded_samples(x: Tensor, activation: str, input_scale: Tensor | None, input_zero: Tensor | None) -> Tensor:
    """The input as it is multiplied: as it is, or rounded to 8 bits and back, with a scale for each sample or for all.

    Args:
        x: float [batch, channels, *sides].
        activation: As the operator takes it.
        input_scale: [1], of ``int8-tensor``.
        input_zero: int8 [1], or ``None``.
    """
    if input_scale is not None:
        return fake_quantize_per_tensor(x, input_scale, input_zero)
    return fake_quantize_per_token(x.flatten(1)).view(x.shape) if activation and x.numel() else x


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """torch's convolution of those sizes."""
    run: Any = _CONVOLUTIONS[len(geometry.kernel)]
    found: Tensor = run(x, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
    return found


def kernel_of(
    packed: Tensor, scale: Tensor, zero: Tensor | None, bits: int, group_size: int, geometry: Geometry
) -> Tensor:
    """The dequantized weight [out, in / groups, *kernel]."""
    matrix: Tensor = torch.ops.goldstick.dequantize(packed, scale, zero, bits, group_size, geometry.columns)
    return matrix.view(packed.shape[0], geometry.in_channels // geometry.groups, *geometry.kernel)


def _run(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bias: Tensor | None,
    bits: int,
    group_size: int,
    activation: str,
    in_channels: int,
    groups: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    input_scale: Tensor | None = None,
    input_zero: Tensor | None = None,
) -> Tensor:
    from goldstick.kernels.prepared_convolution import prepared_for

    geometry = _geometry(in_channels, groups, kernel, stride, padding, dilation)
    _check(x, scale, activation, input_scale, input_zero, geometry)
    if os.environ.get("GOLDSTICK_BACKEND", "") in ("", "cpu-integer"):
        prepared = prepared_for(packed, bits, group_size, activation, geometry)
        found = prepared.run(x, (packed, scale, zero, bias, input_scale, input_zero))
        if found is not None:
            return found
    weight = kernel_of(packed, scale, zero, bits, group_size, geometry)
    return convolve(rounded_samples(x, activation, input_scale, input_zero), weight, bias, geometry)


def _check(
    x: Tensor, scale: Tensor, activation: str, input_scale: Tensor | None, input_zero: Tensor | None, geometry: Geometry
) -> None:
    sides = len(geometry.kernel)
    if x.ndim != sides + 2 or x.shape[1] != geometry.in_channels:
        raise KernelError(
            f"an input of shape {list(x.shape)} is no batch of samples with {geometry.in_channels} channels and "
            f"{sides} side{'s' * (sides > 1)}"
        )
    if x.dtype != scale.dtype:
        raise KernelError(f"the layer computes in {scale.dtype}, but its input is {x.dtype}: cast one of them")
    if activation not in ("", "int8-token", "int8-tensor"):
        raise KernelError(f"unknown activation {activation!r}; known: '', 'int8-token', 'int8-tensor'")
    static = activation == "int8-tensor"
    if (input_scale is not None) != static or (input_zero is not None and not static):
        raise KernelError(f"an input scale belongs to 'int8-tensor' and only to it; this is {activation!r}")


def _geometry(
    in_channels: int,
    groups: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Geometry:
    return Geometry(
        in_channels=in_channels,
        groups=groups,
        kernel=tuple(kernel),
        stride=tuple(stride),
        padding=tuple(padding),
        dilation=tuple(dilation),
    )


def _fake(x: Tensor, packed: Tensor, scale: Tensor, *rest: Any) -> Tensor:
    _zero, _bias, _bits, _group_size, activation, in_channels, groups, kernel, stride, padding, dilation, *inputs = rest
    geometry = _geometry(in_channels, groups, kernel, stride, padding, dilation)
    input_scale, input_zero = [*inputs, None, None][:2]
    _check(x, scale, activation, input_scale, input_zero, geometry)
    return x.new_empty(x.shape[0], packed.shape[0], *geometry.sides_after(x.shape[2:]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, packed, scale, zero, bias, bits, group_size, _, *sizes = inputs
    if any(ctx.needs_input_grad[place] for place in (2, 3)):
        refuse_gradients("quantized_convolution")
    ctx.save_for_backward(x, packed, scale, zero)
    ctx.settings, ctx.geometry, ctx.biased = (bits, group_size), _geometry(*sizes[:6]), bias is not None


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, packed, scale, zero = ctx.saved_tensors
    geometry: Geometry = ctx.geometry
    bits, group_size = ctx.settings
    weight = kernel_of(packed, scale, zero, bits, group_size, geometry)
    sides = len(geometry.kernel)
    grad_x, _, grad_bias = torch.ops.aten.convolution_backward(
        grad,
        x,
        weight,
        [packed.shape[0]] if ctx.biased else None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        False,
        [0] * sides,
        geometry.groups,
        [ctx.needs_input_grad[0], False, ctx.needs_input_grad[4]],
    )
    return grad_x, None, None, None, grad_bias, *[None] * 11


_library.impl("quantized_convolution", _run, "CompositeExplicitAutograd")
torch.library.register_fake("goldstick::quantized_convolution", _fake, lib=_library)
torch.library.register_autograd("goldstick::quantized_convolution", _backward, setup_context=_keep, lib=_library)
