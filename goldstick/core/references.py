"""Copies of models, and the functions in them that go on referring to the model that was copied."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from goldstick.errors import StructureError

#: What nothing is looked for in.
_OPAQUE = (type, types.ModuleType, torch.Tensor, str, bytes, int, float, complex, bool, type(None), torch.dtype)


def copy_of(model: nn.Module) -> nn.Module:
    """A deep copy of a model, all of whose calls stay in the copy.

    Raises:
        StructureError: A function in it refers to a module of the model itself, and the message names it; or it holds
            what is not copied.
    """
    found = deep_copy(model)
    if (path := stray_module(found, model)) is not None:
        raise StructureError(
            f"This {type(model).__name__} cannot be copied: {path} refers to a module from inside a function, and "
            "functions are not copied, so the copy would go on calling the layers of the original. Give inplace=True, "
            "or let the function find the module in its arguments."
        )
    return found


def deep_copy(model: nn.Module) -> nn.Module:
    """A deep copy of a model.

    Raises:
        StructureError: It holds something that torch or Python does not copy.
    """
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:  # tensors that were computed, as torch.nn.utils.weight_norm and prune keep them
        raise StructureError(
            f"This {type(model).__name__} cannot be copied: {error} Give inplace=True, or make its weights plain ones "
            "first (torch.nn.utils.remove_weight_norm, torch.nn.utils.prune.remove)."
        ) from error
    except (TypeError, ValueError, AttributeError) as error:  # locks, iterators, files and the like
        raise StructureError(
            f"This {type(model).__name__} cannot be copied: {_uncopied(model)} ({error}). Keep that outside of the "
            "module, or give inplace=True where no stage of the recipe compares with the float network."
        ) from error


def _uncopied(model: nn.Module) -> str:
    """The first attribute of a module that is not copied."""
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            try:
                if key not in ("_parameters", "_buffers", "_modules"):
                    copy.deepcopy(value)
            except (TypeError, ValueError, AttributeError):
                return f"{name}.{key}".removeprefix(".")
    return "something in it"


def stray_module(model: nn.Module, strange: nn.Module) -> str | None:
    """A path by which a model refers to a module of another one, such as the one it is a copy of; ``None`` where none.

    A deep copy has copies of the modules that its lists, dictionaries and objects refer to. Functions are not copied:
    what they have closed over is what it was.

    Args:
        model: The model.
        strange: The other one.
    """
    own = {id(module) for module in model.modules()}
    names = {id(module): name for name, module in strange.named_modules() if id(module) not in own}
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [(name, module) for name, module in model.named_modules()]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, _OPAQUE) or id(value) in seen:
            continue
        seen.add(id(value))
        if id(value) in names:
            return path
        waiting += [(f"{path}{step}".removeprefix("."), held) for step, held in _held(value)]
    return None


def parameters_of(model: nn.Module) -> dict[str, weakref.ref[nn.Parameter]]:
    """The parameters by name, none kept alive."""
    return {name: weakref.ref(parameter) for name, parameter in model.named_parameters()}


def left_behind(model: nn.Module, parameters: Mapping[str, weakref.ref[nn.Parameter]]) -> dict[str, str]:
    """Paths by which lists, tuples and dictionaries of modules refer to parameters that the model had, and has no more.

    What reads such a parameter reads the float numbers that it held.

    Args:
        model: The model.
        parameters: What :func:`parameters_of` found before.

    Returns:
        The name of the parameter by the path.
    """
    now = {id(parameter) for parameter in model.parameters()}
    gone = {id(one): name for name, held in parameters.items() if (one := held()) is not None and id(one) not in now}
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        waiting = [(f"{name}.{key}".removeprefix("."), value) for key, value in vars(module).items()]
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, nn.Parameter):
                if id(value) in gone:
                    found[path] = gone[id(value)]
            elif isinstance(value, dict | list | tuple | set | frozenset) and not path.endswith("._parameters"):
                waiting += [(path + step, held) for step, held in _held(value)]
    return found


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", held) for key, held in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{place}]", held) for place, held in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from ((".__defaults__", value.__defaults__), (".__kwdefaults__", value.__kwdefaults__))
        yield from zip((f".{name}" for name in value.__code__.co_freevars), _cells(value), strict=True)
    else:
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:  # it has slots, or is of C
            return
        yield from ((f".{name}", held) for name, held in list(attributes.items()))


def _cells(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            yield None
