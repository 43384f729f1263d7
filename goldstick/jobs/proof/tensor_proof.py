"""The proof for models too large to build: every stored tensor against the source it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from goldstick.checkpoint.source import open_tensors
from goldstick.core.error import WeightError, weight_error
from goldstick.core.qtensor import scale_dtype
from goldstick.errors import CheckpointError
from goldstick.formats.input_scale import part_name
from goldstick.jobs.plan.plan import make_plan
from goldstick.recipes import Recipe

_RELATIVE = 1e-9


def compare_tensors(
    directory: Path, source: Path, recipe: Mapping[str, Any], errors: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Read a checkpoint back: copies must be equal to the bit, quantized weights must have the errors recorded.

    An error is Σ(w − ŵ)² over the source's weight and the weight read back; a wrong pack order, scale or zero changes
    it. One tensor is in memory at a time.
    """
    plan = make_plan(source, Recipe.load(recipe))
    stored = open_tensors(directory)
    found: dict[str, WeightError] = {}
    copies = 0
    for tensor in plan.tensors:
        missing = [name for name in tensor.outputs if name not in stored]
        if missing:
            raise CheckpointError(f"{directory} lacks the tensor {missing[0]!r}.")
        original = tensor.source.read()
        if tensor.assignment is None:
            if not stored[tensor.name].holds(original):
                raise CheckpointError(f"{tensor.name} in {directory} differs from the source, and should be its copy.")
            copies += 1
            continue
        assignment = tensor.assignment
        suffixes = plan.format.specs(tensor.stored, torch.float32) if tensor.stored else {}
        parts = {suffix: stored[part_name(tensor.name, suffix)].read() for suffix in suffixes}
        read_back = plan.format.unpack(parts, assignment.scheme, assignment.site.in_features)
        # Some formats store float16 scales; a model computes with them in its own dtype.
        dtype = scale_dtype(tensor.source.dtype)
        read_back = dataclasses.replace(read_back, scale=read_back.scale.to(dtype))
        error = weight_error(assignment.site.layout.to_matrix(original), read_back)
        name = assignment.site.name
        found[name] = found[name] + error if name in found else error
    wrong = [name for name, error in found.items() if not _same(error.noise, errors[name]["noise"])]
    return {
        "method": "tensors",
        "tensors_quantized": len(found),
        "tensors_copied": copies,
        "wrong": wrong[:5],
        "passed": not wrong and set(found) == set(errors),
    }


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= _RELATIVE * max(abs(one), abs(other))
