"""Weights of 16 bits, held in 32 while they are trained: steps of a training are smaller than their last bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.structure.trace import Arguments, map_tensors

_SHORT = (torch.float16, torch.bfloat16)


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers of 16 bits are float32 inside, and rounded to what they were outside; in place.

    Modules that take another's place inside get the dtype by the path; what has no counterpart stays float32. Floats
    that such a model is given inside are float32 for it, too, so that it takes the batches that it took outside.
    """
    values = [*model.named_parameters(), *model.named_buffers()]
    dtypes = {name: value.dtype for name, value in values if value.dtype in _SHORT}
    with torch.no_grad():
        _cast(model, dict.fromkeys(dtypes, torch.float32))
    hook = model.register_forward_pre_hook(_taking_floats, with_kwargs=True) if dtypes else None
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()
        with torch.no_grad():
            _cast(model, dtypes)


def as_held(model: nn.Module, arguments: Arguments) -> Arguments:
    """The arguments of a call, those of 16 and 32 bits float in the dtype of the model's first float parameter.

    Token ids, masks of booleans, other integers and float64 stay what they are.
    """
    dtype = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.dtype in (*_SHORT, torch.float32) else tensor

    found: Arguments = map_tensors(arguments, cast)
    return found


def _taking_floats(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    return as_held(model, (args, kwargs))


def _cast(model: nn.Module, dtypes: dict[str, torch.dtype]) -> None:
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if name in dtypes:
            value.grad = None  # of the other dtype
            value.data = value.data.to(dtypes[name])
