"""What a model gives for inputs, as a flat list of numbers to compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Outputs = dict[str, Tensor]


def outputs_of(model: nn.Module, inputs: Mapping[str, Any]) -> Outputs:
    """Every tensor of numbers that a forward gives, by its place; what it draws at random it draws from one seed.

    Raises:
        ValueError: It gives no number.
    """
    torch.manual_seed(0)
    with torch.no_grad():
        given = model(**{name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.items()})
    found = {name: value for name, value in _tensors("", given) if value.is_floating_point() and value.numel()}
    if not found:
        raise ValueError(f"{type(model).__name__} gives no tensor of numbers")
    return found


def difference(found: Outputs, expected: Outputs) -> float:
    """The largest ‖found − expected‖ / ‖expected‖ of the tensors; infinity where they are others."""
    if found.keys() != expected.keys():
        return float("inf")
    largest = 0.0
    for name, right in expected.items():
        left, right = found[name].double(), right.double()
        if left.shape != right.shape or not torch.equal(left.isfinite(), right.isfinite()):
            return float("inf")
        left, right = left.nan_to_num(0, 0, 0), right.nan_to_num(0, 0, 0)
        away, size = float((left - right).norm()), float(right.norm())
        largest = max(largest, away / size if size else float("inf") if away else 0.0)
    return largest


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value.detach()
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _tensors(f"{name}.{key}" if name else str(key), one)
    elif isinstance(value, (list, tuple)):
        for index, one in enumerate(value):
            yield from _tensors(f"{name}.{index}" if name else str(index), one)
