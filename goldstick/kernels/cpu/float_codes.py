"""The CPU backend of float elements: FP8, FP4 and tables of 4 bits, widened in registers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from goldstick.core.element import ELEMENTS
from goldstick.kernels import cpu
from goldstick.kernels.base import WeightSpec, check_input, check_weight
from goldstick.kernels.reference import quantized_input

_FEW = 8
"""Tokens up to which codes are widened and multiplied at once; for more, the weight is written out first."""

_THREADED_FROM = 1 << 16
"""Weights below this many elements take one thread: starting a team costs more than it saves."""


class FloatCodesCpuBackend:
    """Widens codes eight at a time; weights are bit-equal to the reference.

    A few tokens are multiplied while the codes are read: values times inputs are summed in float32 by group, and each
    sum is multiplied by its scale. The bits of a token's result do not depend on the tokens beside it, nor on threads.
    Of more tokens the weight is dequantized into a scratch buffer and multiplied by torch.
    """

    name = "cpu-float"

    def supports(self, spec: WeightSpec, device: torch.device) -> str | None:
        """Float elements in layers of 16 and 32 bits on the CPU, where the extension was built."""
        if reason := cpu.missing_extension():
            return reason
        if device.type != "cpu":
            return f"it runs on the CPU, not on {device.type}"
        if spec.element not in ELEMENTS:
            return f"it reads float elements, not {spec.element}"
        if spec.dtype not in cpu.PRECISIONS:
            return f"it computes in {', '.join(cpu.PRECISIONS.values())}, not in {spec.dtype}"
        return None

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
        check_input(x, bias, spec, input_scale, input_zero)
        check_weight(packed, scale, zero, spec, global_scale)
        x = quantized_input(x, spec, input_scale, input_zero)
        tokens = x.numel() // spec.in_features
        if tokens > _FEW:
            weight = cpu.scratch_matrix(spec)
            self._dequantize_into(weight, packed, scale, spec, global_scale)
            return F.linear(x, weight, bias)
        y = torch.empty(tokens, spec.out_features)
        cpu._C.multiply_float_codes(
            packed.detach().contiguous(),
            _steps(scale, global_scale),
            ELEMENTS[spec.element].table(),
            x.detach().reshape(tokens, spec.in_features).float().contiguous(),
            y,
            spec.bits,
            spec.group_size,
            spec.element == "e4m3",
            _threads(spec),
        )
        y = y if bias is None else y + bias.float()
        return y.to(spec.dtype).reshape(*x.shape[:-1], spec.out_features)

    def dequantize(
        self,
        packed: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        spec: WeightSpec,
        global_scale: Tensor | None = None,
    ) -> Tensor:
        """value(u) · step, rounded to the dtype of the scale."""
        check_weight(packed, scale, zero, spec, global_scale)
        weight = torch.empty(spec.out_features, spec.in_features, dtype=spec.dtype)
        self._dequantize_into(weight, packed, scale, spec, global_scale)
        return weight

    def _dequantize_into(
        self, weight: Tensor, packed: Tensor, scale: Tensor, spec: WeightSpec, global_scale: Tensor | None
    ) -> None:
        cpu._C.dequantize_float_codes(
            packed.detach().contiguous(),
            _steps(scale, global_scale),
            ELEMENTS[spec.element].table(),
            cpu._as_stored(weight),
            spec.bits,
            spec.group_size,
            spec.element == "e4m3",
            _threads(spec),
        )


def _steps(scale: Tensor, global_scale: Tensor | None) -> Tensor:
    """What values are multiplied by, dense float32 [out, groups]."""
    steps = scale.detach().float()
    return (steps if global_scale is None else steps / global_scale).contiguous()


def _threads(spec: WeightSpec) -> int:
    return torch.get_num_threads() if spec.out_features * spec.in_features >= _THREADED_FROM else 1
