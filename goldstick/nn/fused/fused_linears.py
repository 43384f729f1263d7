"""Quantized linear layers that are given the same input run as one multiplication of their stacked weights.

Where their schemes differ, those of one scheme that follow each other are stacked: mixtures of GGUF give values more
bits than queries and keys.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.kernels.prepared import PreparedLinear, versions
from goldstick.nn.linear import QuantizedLinear

_STACKED = ("weight_packed", "weight_scale", "weight_zero_point", "bias")
_ALIKE = ("input_scale", "input_zero_point", "input_multiplier", "input_order", "weight_global_scale")
_BY_ROW = "weight_global_scale"
"""Of superblocks the scales of scales belong to rows, and are stacked."""


def obstacle(parts: Sequence[QuantizedLinear]) -> str | None:
    """Why layers cannot be stacked; ``None`` where they can."""
    first, runs = parts[0], _runs(parts)
    if any(part.shared is not None for part in parts):
        return "one of them is stacked already"
    if any(part.in_features != first.in_features for part in parts):
        return "they have different numbers of inputs"
    if any(part.rotated for part in parts):
        return "one of them turns its input"
    if len(runs) == len(parts):
        return f"their schemes differ ({', '.join(part.scheme.label for part in parts)})"
    if any(part.weight_scale.dtype != first.weight_scale.dtype for part in parts):
        return "their dtypes differ"
    if any(part.weight_packed.device != first.weight_packed.device for part in parts):
        return "they lie on different devices"
    if any("bias" not in part._parameters for part in parts):
        return "the bias of one is computed in every call"
    if len({part.bias is None for part in parts}) > 1:
        return "some have a bias and some do not"
    return next((reason for run in runs if (reason := _unlike(run)) is not None), None)


def _unlike(run: Sequence[QuantizedLinear]) -> str | None:
    first = run[0]
    for name in [name for name in _ALIKE if name not in stacked_tensors(first)]:
        own, others = getattr(first, name), [getattr(part, name) for part in run[1:]]
        if any((own is None) != (other is None) for other in others):
            return f"only some have an {name}"
        if own is not None and not all(torch.equal(own, other) for other in others):
            return f"they differ in their {name}"
    return None


def _runs(parts: Sequence[QuantizedLinear]) -> list[tuple[QuantizedLinear, ...]]:
    """The layers in their order, those of one scheme that follow each other together."""
    return [tuple(run) for _, run in itertools.groupby(parts, key=lambda part: part.scheme)]


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
        self.runs = _runs(parts)
        self._prepared = [copy.copy(run[0].prepared) for run in self.runs]  # of the layers of all rows
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
            for name in stacked_tensors(part):
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
        if self.offloaded():
            return part.alone(x)
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

    def offloaded(self) -> bool:
        """Whether tensors of a layer are put into memory for its own call only, as accelerate's offloading does."""
        return any(part.weight_packed.is_meta or part.weight_scale.is_meta for part in self.parts)

    def together(self, x: Tensor) -> Tensor:
        """[..., in] → [..., all rows], what the layers give side by side."""
        outputs = [whole.alone(x) for whole in self.wholes()]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    def wholes(self) -> list[QuantizedLinear]:
        """A layer of all rows for each run of layers of one scheme."""
        if [tensor.data_ptr() for tensor in self._tensors()] != self._addresses:
            self._stack()
        return self._wholes

    def _stack(self) -> None:
        """Join the weights, and make each layer's a view of its rows."""
        self._held = None
        self._rows = [part.out_features for part in self.parts]
        self._wholes = [_stacked(run, prepared) for run, prepared in zip(self.runs, self._prepared, strict=True)]
        self._addresses = [tensor.data_ptr() for tensor in self._tensors()]

    def _state(self) -> tuple[list[int], list[int | None]]:
        """Where the weights lie, and how often each was changed."""
        tensors = self._tensors()
        return [tensor.data_ptr() for tensor in tensors], versions(tensors)

    def _tensors(self) -> list[Tensor]:
        return [
            tensor
            for part in self.parts
            for store in (part._buffers, part._parameters)
            for name in stacked_tensors(part)
            if (tensor := store.get(name)) is not None
        ]


def _stacked(run: Sequence[QuantizedLinear], prepared: PreparedLinear) -> QuantizedLinear:
    """The layer of all rows of a run, of which those of each become views."""
    first, rows = run[0], [part.out_features for part in run]
    whole = copy.copy(first)  # its settings; its own tensors follow
    whole._buffers, whole._parameters = dict(first._buffers), dict(first._parameters)
    whole.shared, whole.out_features, whole.prepared = None, sum(rows), prepared
    for name in stacked_tensors(first):
        if getattr(first, name) is None:
            continue
        joined = torch.cat([getattr(part, name).detach() for part in run])
        _set(whole, name, joined)
        for part, own in zip(run, torch.split(joined, rows), strict=True):
            _set(part, name, own)
    return whole


def _unchanged(x: Tensor, before: int | Tensor) -> bool:
    return torch.equal(x, before) if isinstance(before, Tensor) else x._version == before


def _set(layer: QuantizedLinear, name: str, value: Tensor | None) -> None:
    if name == "bias" and value is not None:
        value = nn.Parameter(value, requires_grad=False)
    setattr(layer, name, value)
