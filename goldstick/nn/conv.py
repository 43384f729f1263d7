"""QuantizedConv2d: a 2-D convolution on packed weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.nn.packed import PackedWeight


class QuantizedConv2d(PackedWeight):
    """2-D convolution whose kernel is stored as packed rows [out, in / groups · height · width].

    Args:
        tensor: Codes [out, in / groups · height · width].
        scheme: Grid of the weight.
        conv: The convolution it replaces, for stride, padding, dilation, groups and bias.
    """

    def __init__(self, tensor: QuantizedTensor, scheme: Scheme, conv: nn.Conv2d) -> None:
        super().__init__(tensor, scheme)
        self.kernel_shape = conv.weight.shape
        self.stride, self.padding, self.dilation, self.groups = (
            conv.stride,
            conv.padding,
            conv.dilation,
            conv.groups,
        )
        self.padding_mode = conv.padding_mode
        self.padding_amounts = list(conv._reversed_padding_repeated_twice)
        self.bias = None if conv.bias is None else nn.Parameter(conv.bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, in, height, width] → [batch, out, height′, width′]."""
        kernel = self.dequantized().reshape(self.kernel_shape)
        padding: str | tuple[int, ...] = self.padding
        if self.padding_mode != "zeros":
            x = nn.functional.pad(x, self.padding_amounts, mode=self.padding_mode)
            padding = (0, 0)
        return torch.nn.functional.conv2d(x, kernel, self.bias, self.stride, padding, self.dilation, self.groups)
