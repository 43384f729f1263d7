"""Quantized linear layers that are given the same input run as one multiplication of their stacked weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.kernels.prepared import versions
from goldstick.nn.linear import QuantizedLinear

_STACKED = ("weight_packed", "weight_scale", "weight_zero_point", "bias")
_ALIKE = ("input_scale", "input_zero_point", "input_multiplier", "input_order", "weight_global_scale")
_BY_ROW = "weight_global_scale"
"""Of superblocks the scales of scales belong to rows, and are stacked."""


def obstacle(parts: Sequence[QuantizedLinear]) -> str | None:
    """Why layers cannot be stacked; ``None`` where they can."""
    first = parts[0]
    if any(part.shared is not None for part in parts):
        return "one of them is stacked already"
    if any(part.in_features != first.in_features for part in parts):
        return "they have different numbers of inputs"
    if any(part.scheme != first.scheme for part in parts):
        return f"their schemes differ ({', '.join(part.scheme.label for part in parts)})"
    if any(part.weight_scale.dtype != first.weight_scale.dtype for part in parts):
        return "their dtypes differ"
    if any(part.weight_packed.device != first.weight_packed.device for part in parts):
        return "they lie on different devices"
    if len({part.bias is None for part in parts}) > 1:
        return "some have a bias and some do not"
    for name in [name for name in _ALIKE if name not in stacked_tensors(first)]:
        own, others = getattr(first, name), [getattr(part, name) for part in parts[1:]]
        if any((own is None) != (other is None) for other in others):
            return f"only some have an {name}"
        if own is not None and not all(torch.equal(own, other) for other in others):
            return f"they differ in their {name}"
    return None


def stacked_tensors(layer: QuantizedLinear) -> tuple[str, ...]:
    """Names of the tensors whose rows are those of the weight."""
    return _STACKED if layer.grid.superblock is None else (*_STACKED, _BY_ROW)


class FusedLinears:
    """The stacked weights of layers that are given the same input.

    The layers stay where they are, each with its own rows of the stacked weights, of which its buffers become views.
    The first that is called multiplies for all; the others are called with the same tensor and take what is theirs.
    Another tensor, or the same one or a weight changed in the meantime, is multiplied anew, so that each call gives
    what the layer alone would give. Rows of a product are independent of each other: with the integer kernels the bits
    are the same.

    A module that is moved or cast gets new buffers; they are stacked anew in the next call.

    Args:
        parts: The layers, in which :func:`obstacle` finds none; rewritten in place.
    """

    def __init__(self, parts: Sequence[QuantizedLinear]) -> None:
        self.parts = tuple(parts)
        self._stacked = stacked_tensors(parts[0])
        self.prepared = copy.copy(parts[0].prepared)  # of the layer of all rows
        self._held: tuple[Tensor, int | Tensor, dict[int, Tensor], object] | None = None
        self._stack()
        for part in self.parts:
            part.shared = self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def separate(self) -> None:
        """Let each layer run alone again, on memory of its own."""
        for part in self.parts:
            part.shared = None
            for name in self._stacked:
                _set(part, name, own.clone() if (own := getattr(part, name)) is not None else None)

    def output(self, part: QuantizedLinear, x: Tensor) -> Tensor:
        """[..., in] → [..., out] of one layer."""
        place = next((place for place, own in enumerate(self.parts) if own is part), None)
        if place is None or x.requires_grad or self.learns():
            return part.alone(x)
        held = self._held
        if held is not None and held[0] is x and _unchanged(x, held[1]) and held[3] == self._state():
            found: Tensor | None = held[2].pop(place, None)
            if found is not None:
                if not held[2]:
                    self._held = None  # all have taken theirs
                return found
        pieces = dict(enumerate(torch.split(self.together(x), self._rows, dim=-1)))
        own: Tensor = pieces.pop(place)
        # Inference tensors do not count their changes: a copy shows whether there were any.
        self._held = (x, x.clone() if x.is_inference() else x._version, pieces, self._state())
        return own

    def learns(self) -> bool:
        """Whether a gradient is wanted for a bias: the stacked weights give none."""
        if not torch.is_grad_enabled():
            return False
        biases = [part._parameters["bias"] for part in self.parts]
        return any(bias is not None and bias.requires_grad for bias in biases)

    def together(self, x: Tensor) -> Tensor:
        """[..., in] → [..., all rows], what the layers give side by side."""
        return self.whole().alone(x)

    def whole(self) -> QuantizedLinear:
        """The layer of all rows."""
        if [tensor.data_ptr() for tensor in self._tensors()] != self._addresses:
            self._stack()
        return self._whole

    def _stack(self) -> None:
        """Join the weights, and make each layer's a view of its rows."""
        first = self.parts[0]
        self._held = None
        self._rows = [part.out_features for part in self.parts]
        self._whole = copy.copy(first)  # its settings; its own tensors follow
        self._whole._buffers, self._whole._parameters = dict(first._buffers), dict(first._parameters)
        self._whole.shared, self._whole.out_features = None, sum(self._rows)
        self._whole.prepared = self.prepared
        for name in self._stacked:
            if getattr(first, name) is None:
                continue
            whole = torch.cat([getattr(part, name).detach() for part in self.parts])
            _set(self._whole, name, whole)
            for part, rows in zip(self.parts, torch.split(whole, self._rows), strict=True):
                _set(part, name, rows)
        self._addresses = [tensor.data_ptr() for tensor in self._tensors()]

    def _state(self) -> tuple[list[int], list[int | None]]:
        """Where the weights lie, and how often each was changed."""
        tensors = self._tensors()
        return [tensor.data_ptr() for tensor in tensors], versions(tensors)

    def _tensors(self) -> list[Tensor]:
        stores = [store for part in self.parts for store in (part._buffers, part._parameters)]
        return [tensor for store in stores for name in self._stacked if (tensor := store.get(name)) is not None]


def _unchanged(x: Tensor, before: int | Tensor) -> bool:
    return torch.equal(x, before) if isinstance(before, Tensor) else x._version == before


def _set(layer: QuantizedLinear, name: str, value: Tensor | None) -> None:
    if name == "bias" and value is not None:
        value = nn.Parameter(value, requires_grad=False)
    setattr(layer, name, value)
