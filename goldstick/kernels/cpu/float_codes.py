"""The CPU backend of float elements: FP8, FP4 and tables of 4 bits, widened in registers."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.element import ELEMENTS
from goldstick.core.rounded_inputs import quantized_input
from goldstick.kernels import cpu
from goldstick.kernels.base import WeightSpec, check_input, check_weight, scaling_of, superblock_steps
from goldstick.kernels.cpu import CpuBackend

_FEW = 8
"""Tokens up to which codes are widened and multiplied at once; for more, the weight is written out first."""


class FloatCodesCpuBackend(CpuBackend):
    """Widens codes eight at a time; weights are bit-equal to the reference.

    A few tokens are multiplied while the codes are read: values times inputs are summed in float32 by group, and each
    sum is multiplied by its scale. The bits of a token's result do not depend on the tokens beside it, nor on threads.
    Of more tokens the weight is dequantized into a scratch buffer and multiplied by torch.
    """

    name = "cpu-float"

    def reads(self, element: str) -> bool:
        """Float elements."""
        return element in ELEMENTS

    def linear(
        self,
        x: Tensor,
        packed: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        bias: Tensor | None,
        spec: WeightSpec,
        input_scale: Tensor | None = None,
        input_zero: Tensor | None = None,
        global_scale: Tensor | None = None,
    ) -> Tensor:
        """Fake-quantize the input if the spec says so, then multiply by the widened weight."""
        tokens = x.numel() // spec.in_features
        if tokens > _FEW:
            return super().linear(x, packed, scale, zero, bias, spec, input_scale, input_zero, global_scale)
        check_input(x, bias, spec, input_scale, input_zero)
        check_weight(packed, scale, zero, spec, global_scale)
        inputs = quantized_input(x, spec.activation, input_scale, input_zero).detach().reshape(tokens, spec.in_features)
        y = torch.empty(tokens, spec.out_features, dtype=torch.float32)
        cpu._C.multiply_float_codes(
            packed.detach().contiguous(),
            _steps(scale, global_scale),
            ELEMENTS[spec.element].table(),
            inputs.float().contiguous(),
            y,
            spec.bits,
            spec.group_size,
            spec.element,
            cpu.threads_for(spec),
        )
        y = y if bias is None else y + bias.float()
        return y.to(spec.dtype).reshape(*x.shape[:-1], spec.out_features)

    def _dequantize_into(
        self,
        weight: Tensor,
        packed: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        spec: WeightSpec,
        global_scale: Tensor | None,
    ) -> None:
        check_weight(packed, scale, zero, spec, global_scale)
        cpu._C.dequantize_float_codes(
            packed.detach().contiguous(),
            _steps(scale, global_scale),
            ELEMENTS[spec.element].table(),
            cpu._as_stored(weight),
            spec.bits,
            spec.group_size,
            spec.element,
            cpu.threads_for(spec),
        )


def _steps(scale: Tensor, global_scale: Tensor | None) -> Tensor:
    """What values are multiplied by, dense float32 [out, groups]."""
    steps = scale.detach().float()
    if global_scale is None:
        return steps.contiguous()
    if scaling_of(global_scale)[1]:
        return superblock_steps(scale.detach(), None, global_scale.detach())[0].contiguous()
    return (steps / global_scale).contiguous()
