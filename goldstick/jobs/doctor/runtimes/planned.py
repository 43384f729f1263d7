"""A plan for a runtime: a format that it loads, and nothing that it refuses, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from goldstick.errors import FormatError
from goldstick.formats.base import StorageFormat
from goldstick.jobs.doctor.finding import Finding
from goldstick.jobs.doctor.runtimes.looked_at import LAYOUTS, role_of, sites_of
from goldstick.jobs.doctor.runtimes.runtime import Runtime
from goldstick.jobs.doctor.runtimes.subject import Module, Subject
from goldstick.jobs.plan.choose_format import refusals
from goldstick.jobs.plan.plan import Plan, make_plan
from goldstick.recipes import Recipe


def plan_for(
    directory: Path,
    recipe: Recipe,
    inputs: Mapping[str, Tensor] | None,
    runtime: Runtime | None,
    tensor_parallel: int,
) -> Plan:
    """Plan a recipe; for a runtime, in the first of its formats that holds the result and that it runs.

    A format that the recipe names stays, and what the runtime refuses of it is an error.

    Args:
        directory: The float model.
        recipe: What to do with it.
        inputs: Keyword arguments of its forward to try it with.
        runtime: The program that is to run it; ``None`` for any.
        tensor_parallel: Over how many devices it is to split the layers.

    Raises:
        FormatError: The runtime refuses the result in every format; the message says why and what to change.
    """
    if runtime is None:
        return make_plan(directory, recipe, inputs)
    named = recipe.export.format
    if named != "auto":
        planned = make_plan(directory, recipe, inputs)
        _refuse(runtime, planned.format, _faults(runtime, planned, planned.format, tensor_parallel))
        return planned
    planned = make_plan(directory, recipe, inputs)
    layers = [tensor.stored for tensor in planned.tensors if tensor.stored]
    refused: list[tuple[StorageFormat, list[Finding]]] = []
    unfit = []
    for storage in runtime.formats:
        if reasons := refusals(storage, layers, planned.resolution.ties):
            unfit.append(f"{storage.name}: {reasons[0]}")
            continue
        faults = _faults(runtime, planned, storage, tensor_parallel)
        if not faults:
            if storage.name == planned.format.name:
                return planned
            chosen = recipe.export.model_copy(update={"format": storage.name})
            return make_plan(directory, recipe.model_copy(update={"export": chosen}), inputs)
        refused.append((storage, faults))
    if refused:
        _refuse(runtime, *refused[0])
    raise FormatError(
        f"No format that {runtime.title} {runtime.version} loads holds the result of this recipe ({'; '.join(unfit)}). "
        f"Change the scheme: docs/runtimes.md lists what it runs."
    )


def _faults(runtime: Runtime, plan: Plan, storage: StorageFormat, tensor_parallel: int) -> list[Finding]:
    findings, _ = runtime.judge(planned_subject(plan, storage, tensor_parallel))
    return [finding for finding in findings if finding.severity == "fault"]


def _refuse(runtime: Runtime, storage: StorageFormat, faults: list[Finding]) -> None:
    if faults:
        raise FormatError(faults_in_words(runtime, storage, faults))


def faults_in_words(runtime: Runtime, storage: StorageFormat, faults: Sequence[Finding]) -> str:
    """Why a runtime would not run what is planned, and what to do: the first of its faults, and how many there are.

    Args:
        runtime: The program.
        storage: The format that it would be stored in.
        faults: What the program's rules found, at least one.
    """
    first, more = faults[0], f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
    where = "; ".join(first.where[:3])
    return (
        f"{runtime.title} {runtime.version} would not run this as {storage.name}: {first.what} ({where}){more}. "
        f"To do: {first.remedy}."
    )


def planned_subject(plan: Plan, storage: StorageFormat, tensor_parallel: int) -> Subject:
    """What a plan will write, as rules look at it.

    Args:
        plan: The plan.
        storage: The format it will be stored in.
        tensor_parallel: Over how many devices layers are to be split.
    """
    layers = [tensor.stored for tensor in plan.tensors if tensor.stored]
    config: dict[str, Any] = dict(plan.source.config)
    if plan.resolution.untied:
        config["tie_word_embeddings"] = False
    sites = sites_of(plan.network)
    modules = []
    for tensor in plan.tensors:
        site = sites.get(tensor.parameter)
        scheme = tensor.stored.scheme if tensor.stored is not None else None
        shape = tensor.stored.shape[-2:] if tensor.stored is not None else tensor.source.shape
        float_matrix = site is not None and site.layout in LAYOUTS and tensor.name.endswith(".weight")
        if scheme is not None or (float_matrix and len(shape) == 2):
            name = tensor.name.removesuffix(".weight")
            modules.append(Module(name=name, shape=shape, scheme=scheme, role=role_of(site)))
    unused = {
        tensor.name.removesuffix(".weight"): torch.Size(tensor.source.shape)
        for tensor in plan.unused
        if tensor.name.endswith(".weight") and len(tensor.source.shape) == 2
    }
    return Subject(
        config=config,
        table=storage.config(layers, plan.float_modules, plan.resolution.ties) if layers else {},
        modules=tuple(modules),
        unused=unused,
        tensor_parallel=tensor_parallel,
        model=plan.network.model,
    )
