"""Modules that alone read what another module gives, found by running the network."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from goldstick.structure.trace import evaluating

Kind = Callable[[nn.Module], bool]


def find_followers(
    model: nn.Module, inputs: Mapping[str, Any], first: Kind, then: Kind, *, padded: bool = False
) -> list[tuple[str, str]]:
    """Paths of two modules, the second of which alone reads the output of the first, in order of execution.

    Both are called once, and share no parameter with others; nobody holds the output after the call. A module that
    changes its input in place (``inplace``) may be followed by readers of what it has made of it.

    Args:
        model: The network, in memory; left as it is.
        inputs: Keyword arguments of its forward.
        first: Which modules are looked at.
        then: Which modules may follow them.
        padded: Whether zeros may be laid around the output in between.
    """
    paths: dict[nn.Module, str] = {}
    for path, module in model.named_modules():
        paths.setdefault(module, path)
    alone = _owning_alone(model)
    makers = [module for module in paths if module in alone and first(module)]
    readers = [module for module in paths if module in alone and then(module)]
    pairs, output = _watched(model, inputs, makers, readers, padded)
    found = [(paths[pair.maker], paths[pair.reader]) for pair in pairs if all(one() is None for one in pair.read)]
    del output  # it may hold what was read
    return found


class _Pair(NamedTuple):
    maker: nn.Module
    reader: nn.Module
    read: list[weakref.ref[Tensor]]
    """What nobody may hold after the call: who keeps it may read it later."""


def _watched(
    model: nn.Module,
    inputs: Mapping[str, Any],
    makers: Sequence[nn.Module],
    readers: Sequence[nn.Module],
    padded: bool,
) -> tuple[list[_Pair], Any]:
    """Pairs as a call shows them, of whose tensors nothing is held here any more, and what the call gave."""
    made: dict[int, tuple[nn.Module, Tensor, int]] = {}
    read: list[tuple[nn.Module, Tensor, Tensor, nn.Module, int]] = []
    gave: Counter[nn.Module] = Counter()
    given_to: Counter[nn.Module] = Counter()
    uses = _Uses()

    def note_output(module: nn.Module, _: Any, output: Any) -> None:
        gave[module] += 1
        if isinstance(output, Tensor):
            made[id(output)] = module, output, uses.of(output)  # held, so that no other tensor gets its place

    def note_input(module: nn.Module, args: tuple[Any, ...]) -> None:
        given_to[module] += 1
        if args and isinstance(args[0], Tensor):
            x = args[0]
            inner = uses.inside(x) if padded else x
            maker, _, before = made.get(id(inner), (None, x, 0))
            before = before if inner is x else 0
            if maker is not None and uses.of(x) == before:
                read.append((module, x, inner, maker, before))

    hooks = [module.register_forward_hook(note_output) for module in makers]
    hooks += [module.register_forward_pre_hook(note_input) for module in readers]
    try:
        with evaluating(model), torch.inference_mode(False), torch.no_grad(), uses:
            output = model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    pairs = []
    for follower, x, inner, maker, before in read:
        goes_on = getattr(follower, "inplace", False)
        if gave[maker] != 1 or given_to[follower] != 1 or not (goes_on or uses.of(x) == before + 1):
            continue
        if inner is not x and uses.of(inner) != made[id(inner)][2] + 1:
            continue
        ends = [*([] if inner is x else [inner]), *([] if goes_on else [x])]
        pairs.append(_Pair(maker, follower, [weakref.ref(one) for one in ends]))
    return pairs, output


class _Uses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts how many operators read each tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counted: Counter[int] = Counter()
        self._held: list[Any] = []
        self._inside: dict[int, Tensor] = {}

    def of(self, tensor: Tensor) -> int:
        """How many operators have read it."""
        return self._counted[id(tensor)]

    def inside(self, tensor: Tensor) -> Tensor:
        """What zeros were laid around to get it, or itself."""
        return self._inside.get(id(tensor), tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [value for value in tree_leaves((args, kwargs or {})) if isinstance(value, Tensor)]
        self._counted.update({id(tensor) for tensor in tensors})
        self._held += tensors  # held, so that no other tensor gets its place
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.constant_pad_nd.default and not any(args[2:]):
            self._inside[id(found)] = args[0]
            self._held.append(found)
        return found


def _owning_alone(model: nn.Module) -> set[nn.Module]:
    """Modules none of whose parameters is that of another module too."""
    owners: Counter[int] = Counter()
    modules = list(model.modules())
    for module in modules:
        owners.update({id(parameter) for parameter in module._parameters.values() if parameter is not None})
    return {
        module
        for module in modules
        if all(owners[id(one)] == 1 for one in module._parameters.values() if one is not None)
    }
