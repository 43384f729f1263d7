"""The plain-torch backend: runs everywhere, and is what the others must equal bit for bit."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from goldstick.core.bitpack import unpack_rows
from goldstick.core.element import ELEMENTS
from goldstick.core.rounded_inputs import quantized_input
from goldstick.kernels.base import WeightSpec, check_input, check_weight, superblock_steps


class ReferenceBackend:
    """Unpacks, dequantizes and multiplies with torch."""

    name = "reference"

    def supports(self, spec: WeightSpec, device: torch.device) -> str | None:
        """Every layer on every device."""
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
        """Fake-quantize the input if the spec says so, then multiply by the dequantized weight."""
        check_input(x, bias, spec, input_scale, input_zero)
        weight = self.dequantize(packed, scale, zero, spec, global_scale)
        return F.linear(quantized_input(x, spec.activation, input_scale, input_zero), weight, bias)

    def dequantize(
        self,
        packed: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        spec: WeightSpec,
        global_scale: Tensor | None = None,
    ) -> Tensor:
        """(u − zero) · scale, both operations in the dtype of the scale; or the value of u times the scale."""
        check_weight(packed, scale, zero, spec, global_scale)
        codes = unpack_rows(packed, spec.bits, spec.in_features)  # [out, in]
        if global_scale is not None and spec.superblocks:
            return _superblock_weight(codes, scale, zero, spec, global_scale)
        if spec.element in ELEMENTS:
            wide = torch.promote_types(scale.dtype, torch.float32)
            steps = scale.to(wide) if global_scale is None else scale.to(wide) / global_scale
            columns = torch.arange(spec.in_features, device=scale.device) // spec.group_size
            return ELEMENTS[spec.element].numbers(codes, wide).mul_(steps[:, columns]).to(scale.dtype)
        weight = codes.to(scale.dtype)
        if spec.in_features % spec.group_size == 0:
            grouped = weight.view(spec.out_features, spec.groups, spec.group_size)
            grouped -= _middle(spec) if zero is None else zero.to(scale.dtype).unsqueeze(-1)
            grouped *= scale.unsqueeze(-1)
        else:
            columns = torch.arange(spec.in_features, device=scale.device) // spec.group_size
            weight -= _middle(spec) if zero is None else zero.to(scale.dtype)[:, columns]
            weight *= scale[:, columns]
        return weight


def _superblock_weight(
    codes: Tensor, scale: Tensor, zero: Tensor | None, spec: WeightSpec, global_scale: Tensor
) -> Tensor:
    wide = torch.promote_types(scale.dtype, torch.float32)
    steps, minimums = superblock_steps(scale, zero, global_scale, wide)
    columns = torch.arange(spec.in_features, device=scale.device) // spec.group_size
    if spec.element in ELEMENTS:
        values = ELEMENTS[spec.element].numbers(codes, wide)
    else:
        values = codes.to(wide) - (_middle(spec) if zero is None else 0.0)
    values = values.mul_(steps[:, columns])
    return (values if minimums is None else values.sub_(minimums[:, columns])).to(scale.dtype)


def _middle(spec: WeightSpec) -> float:
    """The zero of a symmetric weight."""
    return float(1 << (spec.bits - 1))
