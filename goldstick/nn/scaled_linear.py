"""A quantized linear layer whose scales learn, while its codes stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from goldstick.core.learned_scale import LearnedScale, can_learn
from goldstick.core.rounded_inputs import quantized_input
from goldstick.core.straight_through import passing, rounded_to
from goldstick.core.trainable_wrapper import ParameterGroup, TrainableWrapper
from goldstick.nn.linear import QuantizedLinear
from goldstick.nn.packed import bias_of


class ScaledLinear(TrainableWrapper):
    """y = (f(x)·Ŵᵀ) + b with Ŵ = s·v, v what the codes stand for, and s learning.

    Ŵ and the input f(x) are rounded as the layer rounds them in its own dtype; gradients pass the rounding.

    Args:
        layer: The layer. It keeps its numbers until :meth:`settle`.
        rate: The learning rate of the logarithms of s at its highest.
        stored: The dtype in which its scales are stored; their own where ``None``.
    """

    layer: QuantizedLinear
    values: Tensor

    def __init__(self, layer: QuantizedLinear, rate: float, stored: torch.dtype | None = None) -> None:
        super().__init__(layer)
        tensor = layer.quantized_tensor()
        ones = None if tensor.global_scale is None else torch.ones_like(tensor.global_scale)
        unscaled = dataclasses.replace(
            tensor, scale=torch.ones_like(tensor.scale, dtype=torch.float32), global_scale=ones, input_order=None
        )
        self.dtype, self.rate = tensor.scale.dtype, rate
        self.width, self.divisor = tensor.grid.group_width(tensor.in_features), tensor.global_scale
        self.register_buffer("values", unscaled.dequantize(), persistent=False)
        self.scale = LearnedScale(tensor, stored)

    @property
    def weight(self) -> Tensor:
        """Ŵ in the order of the layer's codes, [out, in], of float32 numbers that the layer's dtype holds."""
        steps: Tensor = self.scale()
        if self.divisor is not None:
            steps = steps / self.divisor
        spread = steps if steps.shape[-1] == 1 else steps.repeat_interleave(self.width, dim=-1)
        return rounded_to(spread[..., : self.values.shape[-1]] * self.values, self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        layer = self.layer
        x = layer.prepared_input(x)
        activation = None if layer.scheme.activation is None else layer.scheme.activation.input_name
        if activation is not None:
            with torch.no_grad():
                static = None if layer.input_scale is None else layer.input_scale.to(self.dtype)
                rounded = quantized_input(x.to(self.dtype), activation, static, layer.input_zero_point)
            x = passing(x, rounded.to(x.dtype))
        bias = bias_of(layer)
        return F.linear(x, self.weight.to(x.dtype), None if bias is None else bias.to(x.dtype))

    def anneal(self, progress: float) -> None:
        """Nothing gets harder."""

    def groups(self) -> Sequence[ParameterGroup]:
        """The scales."""
        return (ParameterGroup(parameters=(self.scale.log_scale,), rate=self.rate),)

    def settle(self, *, as_it_was: bool = False) -> None:
        """Let the layer have the scales as they stand, or as they were in the beginning."""
        found = self.scale.first.to(self.dtype) if as_it_was else self.scale.settled()
        self.layer.weight_scale = nn.Parameter(found, requires_grad=False)

    @staticmethod
    def stands_in_for(layer: nn.Module) -> bool:
        """Whether it computes what a layer computes, and has something to learn there."""
        if not isinstance(layer, QuantizedLinear) or type(layer).forward is not QuantizedLinear.forward:
            return False
        return "forward" not in vars(layer) and layer.shared is None and can_learn(layer.grid)
