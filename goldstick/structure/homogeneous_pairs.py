"""Pairs of convolutions between which a channel's size is free: found by running the network.

With f(s·x) = s·f(x) for s > 0, as ReLU has it, W₂·f(W₁·x) = (W₂·S)·f(S⁻¹·W₁·x) for any positive diagonal S.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from goldstick.structure.plain_layers import inherits_forward
from goldstick.structure.trace import evaluating, tensors_in

_HOMOGENEOUS = {"aten::relu", "aten::relu_", "aten::leaky_relu", "aten::leaky_relu_"}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two convolutions, the second of which reads the first, perhaps through a ReLU, and nothing else does.

    Attributes:
        first: Path of the one.
        second: Path of the other.
    """

    first: str
    second: str


def find_homogeneous_pairs(model: nn.Module, inputs: Mapping[str, Any]) -> list[Pair]:
    """The pairs of a network, in order of execution; of convolutions that run once and pad with zeros.

    Args:
        model: The network, in memory; left as it is.
        inputs: Keyword arguments of its forward.
    """
    with evaluating(model), torch.no_grad(), _Flow(_paths_of_weights(model)) as flow:
        output = model(**inputs)
    given = {id(tensor) for tensor in tensors_in(output)}
    once = {path for path, count in Counter(path for path, _, _ in flow.convolutions).items() if count == 1}
    of_output = {id(made): path for path, _, made in flow.convolutions}
    found = []
    for path, read, _ in flow.convolutions:
        source, through = read, [id(read)]
        while id(source) in flow.passed:
            source = flow.passed[id(source)]
            through.append(id(source))
        first = of_output.get(id(source))
        free = all(flow.readers[tensor] == 1 and tensor not in given for tensor in {*through})
        if first in once and path in once and free:
            assert first is not None
            found.append(Pair(first=first, second=path))
    return found


def _paths_of_weights(model: nn.Module) -> dict[int, str]:
    """Weight → path of the only convolution that holds it."""
    holders: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                holders.setdefault(id(parameter), []).append(path)
    found = {}
    for path, module in model.named_modules():
        plain = (
            isinstance(module, nn.Conv1d | nn.Conv2d) and inherits_forward(module) and module.padding_mode == "zeros"
        )
        if plain and isinstance(module.weight, nn.Parameter) and holders[id(module.weight)] == [path]:
            found[id(module.weight)] = path
    return found


class _Flow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what convolutions read and make, and which tensors are others passed through a ReLU."""

    def __init__(self, weights: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights, self._held = weights, list[Any]()  # held, so that no other tensor gets the place of one
        self.convolutions: list[tuple[str, Tensor, Tensor]] = []
        self.passed: dict[int, Tensor] = {}
        self.readers: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [value for value in tree_leaves((args, kwargs or {})) if isinstance(value, Tensor)]
        found = func(*args, **(kwargs or {}))
        self._held += [*tensors, found]
        in_place = func._schema.name.endswith("_")
        if not (in_place and func._schema.name in _HOMOGENEOUS):
            self.readers.update({id(tensor) for tensor in tensors})
        if func._schema.name in _HOMOGENEOUS and not in_place:
            self.passed[id(found)] = tensors[0]
        if func._schema.name == "aten::convolution" and (path := self._weights.get(id(args[1]))) is not None:
            self.convolutions.append((path, args[0], found))
        return found
