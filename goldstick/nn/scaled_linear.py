"""Quantized linear layers whose scales learn, while their codes stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from goldstick.core.learned_scale import LearnedScale, can_learn
from goldstick.core.qtensor import in_place
from goldstick.core.rounded_inputs import quantized_input
from goldstick.core.straight_through import passing, rounded_to
from goldstick.core.trainable_wrapper import ParameterGroup, Trainable
from goldstick.nn.linear import QuantizedLinear

_LEARNED = "_learned_weight"
_SCALED: dict[type[QuantizedLinear], type[Any]] = {}


class LearnedWeight(Trainable):
    """Ŵ = s·v, v what the codes stand for, and s learning; rounded as the layer rounds in its own dtype.

    Args:
        layer: The layer, which keeps its own numbers.
        rate: The learning rate of the logarithms of s at its highest.
        stored: The dtype in which its scales are stored; their own where ``None``.
    """

    values: Tensor

    def __init__(self, layer: QuantizedLinear, rate: float, stored: torch.dtype | None = None) -> None:
        super().__init__()
        tensor = layer.quantized_tensor()
        ones = None if tensor.global_scale is None else torch.ones_like(tensor.global_scale)
        unscaled = dataclasses.replace(
            tensor, scale=torch.ones_like(tensor.scale, dtype=torch.float32), global_scale=ones, input_order=None
        )
        self.dtype, self.rate = tensor.scale.dtype, rate
        self.width, self.divisor = tensor.grid.group_width(tensor.in_features), tensor.global_scale
        self.register_buffer("values", unscaled.dequantize(), persistent=False)
        self.scale = LearnedScale(tensor, stored)

    def forward(self) -> Tensor:
        """Ŵ in the order of the layer's codes, [out, in], of float32 numbers that the layer's dtype holds."""
        steps: Tensor = self.scale()
        if self.divisor is not None:
            steps = steps / self.divisor
        spread = steps if steps.shape[-1] == 1 else steps.repeat_interleave(self.width, dim=-1)
        return rounded_to(spread[..., : self.values.shape[-1]] * self.values, self.dtype)

    def anneal(self, progress: float) -> None:
        """Nothing gets harder."""

    def groups(self) -> Sequence[ParameterGroup]:
        """The scales."""
        return (ParameterGroup(parameters=(self.scale.log_scale,), rate=self.rate),)

    def settled(self) -> Tensor:
        """The scales as they stand, in their dtype."""
        return self.scale.settled()

    def at_first(self) -> Tensor:
        """The scales as they were in the beginning, in their dtype."""
        return self.scale.first.to(self.dtype)


class ScaledLinear(QuantizedLinear):
    """y = f(x)·Ŵᵀ + b with a :class:`LearnedWeight`, where the layer multiplies and where somebody reads its numbers.

    It is mixed into the class of the layer, which stays what it was in all else. The input f(x) is rounded as the layer
    rounds it in its own dtype; gradients pass the rounding.
    """

    _was: type[QuantizedLinear]

    def dequantized(self) -> Tensor:
        """The weight as numbers, [out, in], in the scale's dtype; they can be differentiated in the scales."""
        return in_place(_learned(self)(), self.input_order).to(self.weight_scale.dtype)

    def multiplied(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """f(x)·Ŵᵀ + b, [..., in] → [..., out]."""
        learned = _learned(self)
        x = self.prepared_input(x)
        activation = None if self.scheme.activation is None else self.scheme.activation.input_name
        if activation is not None:
            with torch.no_grad():
                static = None if self.input_scale is None else self.input_scale.to(learned.dtype)
                rounded = quantized_input(x.to(learned.dtype), activation, static, self.input_zero_point)
            x = passing(x, rounded.to(x.dtype))
        return F.linear(x, learned().to(x.dtype), None if bias is None else bias.to(x.dtype))


def can_learn_scales(layer: nn.Module) -> bool:
    """Whether a layer is a quantized linear one that multiplies as they do, and has something to learn there."""
    if not isinstance(layer, QuantizedLinear) or type(layer).forward is not QuantizedLinear.forward:
        return False
    return "forward" not in vars(layer) and layer.shared is None and can_learn(layer.grid)


def learn_scales(layer: QuantizedLinear, rate: float, stored: torch.dtype | None = None) -> LearnedWeight:
    """Let a layer itself become one whose scales learn, until :func:`settle`; see :class:`LearnedWeight`."""
    learned = LearnedWeight(layer, rate, stored)
    layer.register_module(_LEARNED, learned)
    kind = type(layer)
    if kind not in _SCALED:
        _SCALED[kind] = type(f"Scaled{kind.__name__}", (ScaledLinear, kind), {"_was": kind, "__module__": __name__})
    layer.__class__ = _SCALED[kind]
    return learned


def settle(layer: QuantizedLinear, scales: Tensor) -> None:
    """Let a layer be again what it was, with other scales."""
    own: Any = layer
    if _LEARNED in own._modules:
        own.__class__ = own._was
        del own._modules[_LEARNED]
    own.weight_scale = nn.Parameter(scales, requires_grad=False)


def _learned(layer: ScaledLinear) -> LearnedWeight:
    found: Any = layer._modules[_LEARNED]
    return found  # type: ignore[no-any-return]
