"""Batches that a caller brings: whatever an iterable gives, as the keyword arguments of a module's forward."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from goldstick.errors import DataError
from goldstick.structure.trace import tensors_in

#: What is taken, for errors.
TAKEN = (
    "An item is a mapping of the forward's keyword arguments (such as a tokenizer's or a processor's output), a "
    "tensor, or a tuple or list of tensors in the order of the forward's arguments"
)

_IDS = "input_ids"
_MASK = "attention_mask"

#: What torch's wrappers take (torch.compile, DataParallel, AveragedModel, …), and how they call what they wrap.
_ANY = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
_WRAPPED = ("module", "_orig_mod")


def as_batches(model: nn.Module, data: Iterable[Any]) -> list[dict[str, Any]]:
    """Keyword arguments of a module's forward for each item of ``data``.

    A mapping is taken as it is; tensors may lie in mappings, tuples and lists in it. Arrays of numpy count as tensors
    of their dtype. A tensor is the first positional argument; where that is called ``input_ids``, or the
    module is one of transformers' that takes them and the tensor holds whole numbers, it is token ids, [batch, tokens]
    or [tokens]. Of a tuple or list, as many tensors are positional arguments as the forward has without a default, and
    at least one; one that is left over is what a ``DataLoader`` gives as labels, and is left out. Of torch's wrappers
    the forward of what they wrap counts.

    Args:
        model: The module.
        data: The items.

    Raises:
        DataError: ``data`` is no iterable, or an item is of another kind or empty, which the message names; or masks
            leave no token.
    """
    if isinstance(data, Mapping | str | bytes) or not isinstance(data, Iterable):
        inside = " For one batch, write data=[batch]." if isinstance(data, Mapping) else ""
        raise DataError(f"data is an iterable of batches, not {type(data).__name__}.{inside} {TAKEN}.")
    forward = _Forward(model)
    batches = [_not_empty(forward.arguments(item, place), place) for place, item in enumerate(data)]
    if batches and all(_hides_all(batch.get(_MASK)) for batch in batches):
        raise DataError(
            f"The {_MASK} of every item of data is 0 throughout, so no token counts and nothing can be learned. 1 "
            "marks a token, 0 padding."
        )
    return batches


class _Forward:
    """A module's forward, by its signature.

    Args:
        model: The module.
    """

    def __init__(self, model: nn.Module) -> None:
        model, parameters = _wrapped(model)
        self._model = type(model).__name__
        kinds = {parameter.kind for parameter in parameters}
        self._named = [one.name for one in parameters if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
        self._required = sum(
            one.kind is Parameter.POSITIONAL_OR_KEYWORD and one.default is Parameter.empty for one in parameters
        )
        only = [one.name for one in parameters if one.kind is Parameter.KEYWORD_ONLY]
        self._names = {*self._named, *only}
        self._positional = bool(self._named) and Parameter.POSITIONAL_ONLY not in kinds
        self._open = not parameters or Parameter.VAR_KEYWORD in kinds
        self._takes_ids = _IDS in self._names if self._positional else self._open
        if not hasattr(model, "config") and self._positional:
            self._takes_ids = self._named[0] == _IDS and self._required <= 1

    def arguments(self, item: Any, place: int) -> dict[str, Any]:
        """The keyword arguments that an item is."""
        item, where = _of_torch(item), f"Item {place} of data"
        if isinstance(item, Mapping):
            return self._of_mapping(item, where)
        if isinstance(item, Tensor):
            return self._of_tensors([item], where)
        if isinstance(item, Sequence) and not isinstance(item, str | bytes):
            return self._of_tensors(item, where)
        raise DataError(f"{where} is of type {type(item).__name__}. {TAKEN}.")

    def _of_mapping(self, item: Mapping[Any, Any], where: str) -> dict[str, Any]:
        odd = [name for name in item if not isinstance(name, str)]
        if odd or not any(True for _ in tensors_in(item)):
            held = f"has a key of type {type(odd[0]).__name__}" if odd else f"holds no tensor, only {_kinds(item)}"
            raise DataError(f"{where} is a {type(item).__name__} that {held}. {TAKEN}.")
        unknown = [] if self._open else [name for name in item if name not in self._names]
        if unknown:
            raise DataError(
                f"{where} names {', '.join(map(repr, unknown[:5]))}, and the forward of {self._model} takes "
                f"{', '.join(sorted(self._names)) or 'nothing'}.{self._in_one()}"
            )
        return dict(item)

    def _in_one(self) -> str:
        """How to give a mapping to a forward that takes one as its only argument."""
        if self._required != 1 or not self._positional:
            return ""
        name = self._named[0]
        return f" If {name} is to be such a mapping itself, give {{{name!r}: …}} with it inside."

    def _of_tensors(self, values: Sequence[Any], where: str) -> dict[str, Any]:
        passed = max(self._required, 1)
        odd = [
            f"{type(value).__name__} at {place}" for place, value in enumerate(values[:passed]) if _is_no_tensor(value)
        ]
        if odd or not values:
            held = ", ".join(odd[:3]) or "nothing"
            raise DataError(f"{where} is a {type(values).__name__} that holds {held}. {TAKEN}.")
        first = values[0]
        if self._takes_ids and len(values) <= 2 and not first.is_floating_point():
            return {_IDS: _rows(first)}
        if not self._positional:
            raise DataError(
                f"{where} is to be passed by position, and the forward of {self._model} does not name its positional "
                "arguments. Give mappings of its keyword arguments, or wrap the module in one whose forward names them."
            )
        if not passed <= len(values) <= passed + 1:
            raise DataError(
                f"{where} holds {len(values)} {'value' if len(values) == 1 else 'values'}, and the forward of "
                f"{self._model} takes {passed} by position ({', '.join(self._named[:5])}). Give a mapping of its "
                "keyword arguments to say which is which."
            )
        given = dict(zip(self._named, values[:passed], strict=False))
        return {name: _rows(value) if name == _IDS else value for name, value in given.items()}


def _wrapped(model: nn.Module) -> tuple[nn.Module, list[Parameter]]:
    """The module that a wrapper hands any arguments on to, itself where it is none, and its forward's parameters."""
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):  # a forward that was compiled
        return model, []
    children = dict(model.named_children())
    if {one.kind for one in parameters} == _ANY and len(children) == 1 and next(iter(children)) in _WRAPPED:
        return _wrapped(*children.values())
    return model, parameters


def _not_empty(batch: dict[str, Any], place: int) -> dict[str, Any]:
    tensors = list(tensors_in(batch))
    if not any(tensor.numel() for tensor in tensors):
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors[:3])
        raise DataError(
            f"Item {place} of data holds no numbers ({shapes}), so nothing can be learned from it. Leave it out."
        )
    return batch


def _hides_all(mask: Any) -> bool:
    """Whether a mask of tokens [batch, tokens] leaves none; those that are added to scores are floats."""
    return isinstance(mask, Tensor) and mask.ndim == 2 and not mask.is_floating_point() and not mask.any()


def _of_torch(value: Any) -> Any:
    """The same with tensors in the places of numpy's arrays."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.tensor(value)
    if isinstance(value, Mapping):
        return {key: _of_torch(held) for key, held in value.items()} if _holds_arrays(value.values()) else value
    if type(value) in (tuple, list) and _holds_arrays(value):
        return type(value)(_of_torch(held) for held in value)
    return value


def _holds_arrays(values: Iterable[Any]) -> bool:
    return any(isinstance(value, np.ndarray | Mapping | tuple | list) for value in values)


def _is_no_tensor(value: Any) -> bool:
    return not isinstance(value, Tensor)


def _rows(ids: Tensor) -> Tensor:
    return ids if ids.ndim > 1 else ids.unsqueeze(0)


def _kinds(item: Mapping[Any, Any]) -> str:
    return ", ".join(f"{name}: {type(value).__name__}" for name, value in list(item.items())[:5]) or "nothing"
