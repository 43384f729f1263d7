"""Shared scales of scales: layers that runtimes fuse have one, since these keep a single number for all of them.

Runtimes fuse layers of one module: query, key and value; gate and up. Which of them, no name has to tell: all layers of
a module share it. A float32 over FP8 scales reaches so far that it costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.core.stored_scale import global_scale_for


class Reach:
    """The largest magnitude among the weights that share a scale of scales; each is looked at once.

    Of stacked matrices [..., out, in] each shares with those at its place in the stacks beside it.

    Args:
        schemes: Name of a weight → what it becomes; names of weights of one module differ in their last word.
        read: Reads a weight by its name.
    """

    def __init__(self, schemes: Mapping[str, Scheme], read: Callable[[str], Tensor]) -> None:
        self._read, self._found = read, dict[str, Tensor]()
        self._members: dict[str, list[str]] = {}
        for name, scheme in schemes.items():
            if scheme.weight.tensor_scaled:
                self._members.setdefault(_parent(name), []).append(name)

    def of(self, name: str) -> Tensor | None:
        """max|w| of all that share with a weight, in their dtype, [..., 1, 1]; ``None`` where it shares with none."""
        parent = _parent(name)
        members = self._members.get(parent, [])
        if name not in members or len(members) < 2:
            return None
        if parent not in self._found:
            self._found[parent] = _largest(self._read(member) for member in members)
        return self._found[parent]


def _parent(name: str) -> str:
    return name.removesuffix(".weight").rpartition(".")[0]


def _largest(weights: Iterable[Tensor]) -> Tensor:
    found: Tensor | None = None
    for weight in weights:
        if not weight.is_meta:  # of another part of a model that is read bit by bit
            own = weight.abs().amax(dim=(-2, -1), keepdim=True).cpu()
            found = own if found is None else torch.maximum(found, own)
    assert found is not None
    return found


def _is_plain(own: Tensor, weight: Tensor, grid: Grid) -> bool:
    """Whether a scale of scales leaves no room, as plain rounding has it; searches never give that number."""
    largest = weight.abs().amax(dim=(-2, -1), keepdim=True)
    powers = bool((torch.frexp(own).mantissa == 0.5).all())
    return not powers or torch.equal(global_scale_for(largest, grid).reshape(own.shape).to(own.device), own)


def with_reach(tensor: QuantizedTensor, weight: Tensor, reach: Tensor | None) -> QuantizedTensor:
    """A rounded weight with the scale of scales that is made for ``reach``.

    Where both are powers of two, as searches leave them, scales move by the power between them and weights stay what
    they are, but for scales that become subnormal; otherwise the weight is rounded again, as plain rounding does. Zeros
    alone are zeros with any scale, and take the shared one.

    Args:
        tensor: The codes [..., out, in].
        weight: What they were rounded from.
        reach: The largest magnitude of all that share, [..., 1, 1], or ``None`` where nothing does.
    """
    if reach is None or tensor.global_scale is None:
        return tensor
    own = tensor.global_scale
    if _is_plain(own, weight, tensor.grid):
        return quantize_with_search(weight, tensor.grid, "minmax", largest=reach, plain=True)
    shared = global_scale_for(reach.float(), tensor.grid, room=True).to(own.device)
    zeros = weight.abs().amax(dim=(-2, -1), keepdim=True).to(own.device).expand_as(own) == 0
    shared = torch.where(zeros, shared, torch.minimum(own, shared.expand_as(own)))
    ratio = torch.where(zeros, 1.0, shared / own)
    scale = (tensor.scale.float() * ratio).to(torch.float8_e4m3fn).to(tensor.scale.dtype)
    return replace(tensor, scale=scale, global_scale=shared)
