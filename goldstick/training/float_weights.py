"""Weights of 16 bits, held in 32 while they are trained: steps of a training are smaller than their last bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_SHORT = (torch.float16, torch.bfloat16)


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers of 16 bits are float32 inside, and rounded to what they were outside; in place.

    Modules that take another's place inside get the dtype by the path; what has no counterpart stays float32.
    """
    values = [*model.named_parameters(), *model.named_buffers()]
    dtypes = {name: value.dtype for name, value in values if value.dtype in _SHORT}
    with torch.no_grad():
        _cast(model, dict.fromkeys(dtypes, torch.float32))
    try:
        yield
    finally:
        with torch.no_grad():
            _cast(model, dtypes)


def _cast(model: nn.Module, dtypes: dict[str, torch.dtype]) -> None:
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if name in dtypes:
            value.grad = None  # of the other dtype
            value.data = value.data.to(dtypes[name])
