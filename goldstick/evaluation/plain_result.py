"""Results of tasks as plain data, which caches and reports hold: numbers and arrays of numpy and torch become it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from goldstick.errors import UsageError
from goldstick.evaluation.protocol import TaskResult


def plain_result(name: str, result: Any) -> TaskResult:
    """What a task returned, as plain data.

    Args:
        name: The task's, for errors.
        result: What its ``run`` returned.

    Raises:
        UsageError: It is no result, or holds what is no plain data; the message names the place.
    """
    if not isinstance(result, TaskResult):
        raise UsageError(f"the task {name!r}: its run must return a TaskResult, not {type(result).__name__}")
    found = {
        field.name: _plain(getattr(result, field.name), f"the task {name!r}: {field.name} of its result")
        for field in dataclasses.fields(result)
    }
    protocol, n, metrics, details = (found[key] for key in ("protocol", "n", "metrics", "details"))
    wrong = {
        "protocol is a text": not isinstance(protocol, str),
        "n is a whole number of 0 or more": isinstance(n, bool) or not isinstance(n, int) or n < 0,
        "metrics are numbers by name": not isinstance(metrics, dict)
        or not all(isinstance(value, int | float) for value in metrics.values()),
        "details are plain data by name": not isinstance(details, dict),
    }
    if problem := next((rule for rule, broken in wrong.items() if broken), None):
        key = problem.partition(" ")[0]
        raise UsageError(f"the task {name!r}: {problem}, and its result has {str(found[key])[:100]!r}")
    return TaskResult(protocol=protocol, n=n, metrics=metrics, details=details)


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise UsageError(f"{where}: the key {odd[0]!r} must be a string")
        return {key: _plain(held, f"{where}.{key}") for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held, f"{where}[{number}]") for number, held in enumerate(value)]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise UsageError(f"{where}: {type(value).__name__} is no plain data, so no report could hold it")
