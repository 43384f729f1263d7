"""Replacing: a module in the place of another, wherever that is registered or called from."""

from __future__ import annotations

from torch import nn

from goldstick.errors import StructureError


def replace(model: nn.Module, path: str, new: nn.Module) -> None:
    """Put a module in the place of the one at ``path``, wherever else that is registered too.

    Raises:
        StructureError: The path is empty: the module is the model itself.
    """
    if not path:
        raise itself(model)
    old = model.get_submodule(path)
    for parent in list(model.modules()):  # a module may be registered under several names
        for name, child in list(parent._modules.items()):  # named_children() gives each module once
            if child is old:
                setattr(parent, name, new)
                _replace_in_lists(parent, old, new)


def itself(model: nn.Module) -> StructureError:
    """Why a model that is a layer itself cannot be changed."""
    return StructureError(
        f"The model is itself a {type(model).__name__} and cannot be replaced from within: give "
        "torch.nn.Sequential(model)."
    )


def _replace_in_lists(parent: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in the place of another in lists, tuples and dictionaries that its parent calls it from."""
    for name, value in list(vars(parent).items()):
        if name in ("_modules", "_parameters", "_buffers") or not isinstance(value, list | tuple | dict):
            continue
        if isinstance(value, dict):
            value.update({key: new for key, held in value.items() if held is old})
        elif any(held is old for held in value):
            swapped = [new if held is old else held for held in value]
            vars(parent)[name] = swapped if type(value) is list else type(value)(swapped)
