"""Exports: which other formats the result of a plan can be stored in."""

from __future__ import annotations

import dataclasses

from goldstick.errors import FormatError, UsageError
from goldstick.formats import FORMATS
from goldstick.formats.base import StorageFormat
from goldstick.jobs.plan.choose_format import refusals
from goldstick.jobs.plan.plan import Plan, planned_gguf
from goldstick.jobs.plan.planned_tensors import with_outputs


def export_refusals(plan: Plan) -> dict[str, str]:
    """Format → why ``goldstick export`` cannot store the result in it, empty where it can; without the plan's own.

    What depends on numbers that are not known yet, such as whether a scale is a float16 number, is seen by the export.
    """
    return {name: _refusal(plan, storage) for name, storage in FORMATS.items() if name != plan.format.name}


def _refusal(plan: Plan, storage: StorageFormat) -> str:
    layers = [tensor.stored for tensor in plan.tensors if tensor.stored]
    if reasons := refusals(storage, layers, plan.resolution.ties):
        return reasons[0]
    if not storage.in_gguf:
        return ""
    tensors = tuple(with_outputs(tensor, storage) for tensor in plan.tensors)
    try:
        planned_gguf(dataclasses.replace(plan, format=storage, tensors=tensors))
    except (FormatError, UsageError) as error:  # the latter where the package that writes it is not installed
        return str(error)
    return ""
