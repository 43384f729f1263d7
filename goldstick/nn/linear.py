"""QuantizedLinear: y = x·Ŵᵀ + b on packed weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.nn.packed import PackedWeight


class QuantizedLinear(PackedWeight):
    """Linear layer on a packed weight, through the operator ``goldstick::quantized_linear``.

    Stands in for ``nn.Linear`` and for linears that store [in, out].

    Args:
        tensor: Codes [out, in].
        scheme: Grids of the weight and, with 8-bit activations, of the input.
        bias: float [out], or ``None``.
    """

    def __init__(self, tensor: QuantizedTensor, scheme: Scheme, bias: Tensor | None = None) -> None:
        super().__init__(tensor, scheme)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        return packed_linear(self, x, self.bias)


def packed_linear(weight: PackedWeight, x: Tensor, bias: Tensor | None) -> Tensor:
    """x·Ŵᵀ + b for a packed weight that may belong to another module."""
    result: Tensor = torch.ops.goldstick.quantized_linear(
        x,
        weight.weight_packed,
        weight.weight_scale,
        weight.weight_zero_point,
        bias,
        weight.grid.bits,
        weight.grid.group_width(weight.in_features),
        weight.in_features,
        "int8-token" if weight.scheme.activation else "",
    )
    return result
