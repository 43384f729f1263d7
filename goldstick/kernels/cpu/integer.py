"""The CPU backend that multiplies codes as integers: integer sums, no dequantized weight.

The weight is read where the layer keeps it, so there is no second layout to make, to hold or to keep up to date.
"""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.element import ELEMENTS, INTEGER
from goldstick.core.rounded_inputs import quantized_input
from goldstick.core.scheme import FLOAT_INPUTS
from goldstick.kernels import cpu
from goldstick.kernels.base import WeightSpec, check_input, check_weight, scaling_of
from goldstick.kernels.cpu import CpuBackend
from goldstick.kernels.cpu.float_codes import FloatCodesCpuBackend
from goldstick.kernels.input_bits import grouped_rounding

THREADED_FROM = 1 << 16
"""Multiplications below this many take one thread: starting a team costs more than it saves."""


class IntegerCpuBackend(CpuBackend):
    """Integer sums of packed codes and rounded inputs; each row's result is the same in any batch.

    An input without activation quantization is rounded to 16 bits, with one scale for each token and each group of
    columns (of 128 at most): the normalized squared error of the output stays near 1e-9. Or to 8, where
    :func:`goldstick.kernels.input_bits.set_input_bits` says so. 8-bit activations have the
    codes of the reference. Sums of products are exact; groups are added in order in float32. So neither the number
    of tokens, nor the threads, nor the instruction set changes a bit of a token's result.

    Codes of small floats are looked up in a table of integers as they are unpacked: FP4 is −12 … 12 times a half.

    An infinite input counts as not a number where inputs have scales of their own: it makes its token NaN.
    """

    name = "cpu-integer"
    floats = FloatCodesCpuBackend()

    def reads(self, element: str) -> bool:
        """Integers, and elements whose numbers are integers of 8 bits in some unit."""
        return element == INTEGER or ELEMENTS[element].integers() is not None

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
        """Round the input to integers, multiply by the codes, and scale the sums."""
        check_input(x, bias, spec, input_scale, input_zero)
        check_weight(packed, scale, zero, spec, global_scale)
        activation = spec.activation or grouped_rounding()
        if activation in FLOAT_INPUTS:
            x, input_scale, activation = quantized_input(x, spec.activation, input_scale, input_zero), None, ""
        tokens = x.numel() // spec.in_features
        y = torch.empty(*x.shape[:-1], spec.out_features, dtype=spec.dtype)
        products = tokens * spec.in_features * spec.out_features
        cpu._C.quantized_linear(
            cpu._as_stored(x).view(tokens, spec.in_features),
            packed.detach().contiguous(),
            cpu._as_stored(scale),
            None if zero is None else _as_float(zero, spec.dtype),
            None if bias is None else cpu._as_stored(bias),
            cpu._as_stored(y).view(tokens, spec.out_features),
            spec.bits,
            spec.group_size,
            activation,
            0.0 if input_scale is None else input_scale.item(),
            0 if input_zero is None else int(input_zero),
            torch.get_num_threads() if products >= THREADED_FROM else 1,
            cpu.chosen_isa(),
            *coding_of(spec.element, global_scale),
        )
        return y

    def _dequantize_into(
        self,
        weight: Tensor,
        packed: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        spec: WeightSpec,
        global_scale: Tensor | None,
    ) -> None:
        if spec.element == INTEGER:
            super()._dequantize_into(weight, packed, scale, zero, spec, global_scale)
        else:
            self.floats._dequantize_into(weight, packed, scale, zero, spec, global_scale)


def coding_of(element: str, global_scale: Tensor | None) -> tuple[Tensor | None, int, float, Tensor | None]:
    """What C++ is told of an element: its table of integers, the one that stands for 0, their unit; and of scales.

    The scale of scales is a vector where it is a divisor, and [out, 1 or 2, superblocks] of superblocks.
    """
    superblocks = scaling_of(global_scale)[1]
    further = None if global_scale is None else global_scale.detach().contiguous()
    further = further if further is None or superblocks else further.reshape(-1)
    integers = None if element == INTEGER else ELEMENTS[element].integers()
    if integers is None:
        return None, 0, 1.0, further
    return integers.entries, integers.middle, integers.unit, further


def _as_float(zero: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros as dense float32, from which the kernel rounds them to the layer's dtype; others are rounded before."""
    exact = zero if zero.dtype == torch.float32 else zero.to(dtype).float()
    return exact.detach().contiguous()
