"""State: what a module holds, by name, and what of it no checkpoint can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

EXTRA_STATE = "_extra_state"
"""The last word of the name under which torch keeps what a module's ``get_extra_state`` gives."""


def held_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and persistent buffers of a model, themselves, by each of their names.

    As ``state_dict(keep_vars=True)`` has them where nothing hooks or overrides it.
    """
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        lasting = {name: one for name, one in module._buffers.items() if name not in module._non_persistent_buffers_set}
        for name, one in (*module._parameters.items(), *lasting.items()):
            if one is not None:
                found[_joined(path, name)] = one
    return found


def extra_states(model: nn.Module) -> dict[str, Any]:
    """What modules give by torch's ``get_extra_state``, by its name in a ``state_dict``."""
    return {
        _joined(path, EXTRA_STATE): module.get_extra_state()
        for path, module in model.named_modules(remove_duplicate=False)
        if type(module).get_extra_state is not nn.Module.get_extra_state
    }


def shared_tensors(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Which of some tensors are the very numbers of an earlier one, in the same memory; name → the earlier name."""
    first: dict[object, str] = {}
    owners = {name: first.setdefault(_identity(tensor), name) for name, tensor in tensors.items()}
    return {name: owner for name, owner in owners.items() if name != owner}


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is an array of numbers: neither sparse nor nested, nor laid out for some library alone."""
    return tensor.layout is torch.strided and not tensor.is_nested


def cannot_be_stored(model: nn.Module) -> str:
    """The first thing a model holds that no checkpoint can hold, and the remedy, as a sentence; empty where none."""
    return next(_unfit(model), "")


def _unfit(model: nn.Module) -> Iterator[str]:
    held = held_tensors(model)
    for name, tensor in held.items():
        if not is_plain(tensor):
            kind = "a nested tensor" if tensor.is_nested else f"a tensor of the layout {tensor.layout}"
            yield (
                f"{name} is {kind}, which a checkpoint cannot hold. Register it with persistent=False and build it "
                "with the module, or make it a plain tensor."
            )
        elif tensor.is_meta:
            yield f"{name} is on the meta device, where there are no numbers. Load the weights first."
    modules = dict(model.named_modules(remove_duplicate=False))
    extra = extra_states(model)
    for name, value in extra.items():
        module = modules[name.rpartition(".")[0]]
        if not isinstance(value, Tensor) or not is_plain(value):
            yield (
                f"{name}, what get_extra_state of {type(module).__name__} gives, is of {type(value).__name__}, and a "
                "checkpoint holds tensors alone. Let it give a plain tensor, or keep it in a buffer."
            )
        elif type(module).set_extra_state is nn.Module.set_extra_state:
            yield f"{name} cannot be given back: {type(module).__name__} has no set_extra_state. Add it."
    known = {id(tensor) for tensor in held.values()}
    for name, value in model.state_dict(keep_vars=True).items():
        if name not in held and name not in extra and id(value) not in known:
            yield (
                f"The state_dict of this {type(model).__name__} has {name!r}, which is no parameter or buffer of it, "
                "and would be lost. Keep it in a buffer."
            )


def _identity(tensor: Tensor) -> object:
    if not is_plain(tensor) or tensor.is_meta or not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
