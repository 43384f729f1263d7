"""Prune: what a ``scop`` stage does to a network in memory."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from goldstick import surgery
from goldstick.algorithms import SCOP
from goldstick.algorithms.channel_choice import Choice, knockoff_scores
from goldstick.algorithms.channel_gate import ChannelGate
from goldstick.core.edits import Prune
from goldstick.core.progress import Progress
from goldstick.errors import DataError, RecipeError, StructureError
from goldstick.recipes.channel_scores import comparable, magnitude
from goldstick.recipes.taylor_scores import taylor_scores
from goldstick.structure.calls import first_call
from goldstick.structure.network import Network
from goldstick.structure.pruning.costs import costs_of
from goldstick.structure.pruning.prunable import Prunable, cut_of
from goldstick.structure.pruning.search import find_prunable
from goldstick.structure.trace import Arguments, evaluating, map_tensors, samples_in, tensors_in
from goldstick.training import TrainingRecord, TrainingTask, train
from goldstick.training.knockoff_model import KnockoffModel, takes_others
from goldstick.training.knockoffs import GaussianKnockoffs, correlation_with, derangement
from goldstick.training.loop import seeded
from goldstick.training.task import on_device

#: Samples that a network is tried on.
_SAMPLES = 4
#: Batches that Gaussian knockoffs are fitted to, at most.
_FITTED = 50
_TIMED = 5


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What pruning a network gave.

    Attributes:
        network: The network as it is now.
        edit: What was cut.
        account: For the report.
        record: What the training of the gates did; ``None`` where nothing was trained.
    """

    network: Network
    edit: Prune
    account: dict[str, Any]
    record: TrainingRecord | None


def prune(network: Network, stage: SCOP, task: TrainingTask, description: str, progress: Progress) -> Pruned:
    """Find out which channels can go, score them, and cut those of the lowest scores; in place.

    Raises:
        StructureError: No channel of the network's layers can be cut.
        RecipeError: The stage needs knockoffs from the task, and that gives none.
        TrainingError: The training of the gates diverged.
    """
    model = network.model
    with seeded(stage.training.seed, model):
        whole = _first_call(model, task)
    args, kwargs = few(whole, _SAMPLES)
    groups, refused = find_prunable(network, args, kwargs, layers={site.module for site in stage.sites(network)})
    if not groups:
        layer, reason = next(iter(refused.items()), ("the network", "it has no such layer"))
        raise StructureError(f"No channel can be cut. {layer}: {reason}.")
    costs = costs_of(model, args, kwargs)
    before, slow = costs.of(), seconds_of(model, args, kwargs)
    scores, record, notes = _scores(network, groups, stage, task, whole, description, progress)

    def left_of(choice: Choice) -> dict[str, float]:
        after = costs.of(cut_of(choice, groups))
        return {kind: after[kind] / before[kind] for kind in after}

    choice = stage.choose(scores, left_of, {group.name: group.step(stage.multiple) for group in groups})
    edit = cut_of(choice, groups)
    surgery.apply(network, [edit])
    after, fast = costs.of(edit), seconds_of(model, args, kwargs)
    account = {
        "stage": stage.name,
        "parameters": [before["parameters"], after["parameters"]],
        "macs": [before["macs"], after["macs"]],
        "seconds": [slow, fast],
        "samples": _SAMPLES,
        **notes,
        "layers": [_layer_account(group, scores[group.name], choice) for group in groups],
        "refused": refused,
    }
    return Pruned(network=Network(model, cut=network.cut), edit=edit, account=account, record=record)


def _first_call(model: nn.Module, task: TrainingTask) -> Arguments:
    """What the model is called with for the first batch of two samples or more; where none has, for the first."""
    device = next(model.parameters()).device
    placed = (on_device(batch, device) for batch in task.epoch(0))
    calls = (call_of(model, partial(task.loss, model, batch)) for batch in placed)
    first = next(calls, None)
    if first is None:
        raise DataError("The task gives no batch, so the network cannot be tried.")
    return first if samples_in(first) > 1 else next((call for call in calls if samples_in(call) > 1), first)


def _layer_account(group: Prunable, scores: Tensor, choice: Choice) -> dict[str, Any]:
    return {
        "name": group.name,
        "heads": group.heads,
        "units": group.units,
        "kept": group.units - len(choice[group.name]),
        "scattered": group.scattered is not None,
        "with": [member.module for member in group.members[1:]],
        "scores": [float(value) for value in scores],
        "dropped": sorted(choice[group.name]),
        "error": group.error,
    }


def _scores(
    network: Network,
    groups: Sequence[Prunable],
    stage: SCOP,
    task: TrainingTask,
    whole: Arguments,
    description: str,
    progress: Progress,
) -> tuple[dict[str, Tensor], TrainingRecord | None, dict[str, Any]]:
    if stage.criterion == "random":
        generator = torch.Generator().manual_seed(stage.training.seed)
        draw = partial(torch.rand, dtype=torch.float32, generator=generator)
        return {group.name: draw(group.units) for group in groups}, None, {}
    if stage.criterion == "magnitude":
        strengths = comparable([magnitude(network, group) for group in groups], groups)
        return {group.name: values for group, values in zip(groups, strengths, strict=True)}, None, {}
    if stage.criterion == "taylor":
        with seeded(stage.training.seed, network.model):  # which draws the order of the data
            return taylor_scores(network.model, groups, task), None, {}
    knockoffs = _knockoffs(network.model, stage, task)
    real = next((tensor for tensor in tensors_in(whole) if tensor.is_floating_point() and tensor.ndim > 1), None)
    if samples_in(whole) < 2 and (real is None or takes_others(knockoffs)):
        raise DataError("Every batch is of one sample, which has no knockoffs among the others; give batches of two.")
    notes = {}
    if real is not None:
        with seeded(stage.training.seed, network.model):
            made = real[derangement(len(real)).to(real.device)] if knockoffs is None else knockoffs(real)
            notes["knockoff_correlation"] = correlation_with(real, made)
    gates, record = _train_gates(network.model, groups, stage, task, knockoffs, description, progress)
    own = [
        gate.strength().cpu() if group.norm is None else magnitude(network, group)
        for group, gate in zip(groups, gates, strict=True)
    ]
    scores = {
        group.name: knockoff_scores(strength, gate.beta.detach().double().cpu())
        for group, gate, strength in zip(groups, gates, comparable(own, groups), strict=True)
    }
    return scores, record, notes


def _train_gates(
    model: nn.Module,
    groups: Sequence[Prunable],
    stage: SCOP,
    task: TrainingTask,
    knockoffs: Callable[[Tensor], Tensor] | None,
    description: str,
    progress: Progress,
) -> tuple[list[ChannelGate], TrainingRecord]:
    """Train a gate for every group, in a frozen network that is afterwards as it was."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    modes = {module: module.training for module in model.modules()}
    gates = []
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        for group in groups:
            member = group.gate
            layer = model.get_submodule(member.module)
            gate = ChannelGate(layer, member.units, group.units, reads=member.side == "input")
            surgery.replace(model, member.module, gate)
            gates.append(gate)
        alone = dataclasses.replace(stage.training, norm_batches=0, patience=None)
        shown = dataclasses.replace(task, validate=None)
        record = train(KnockoffModel(model, knockoffs), shown, alone, description=description, progress=progress)
    finally:
        for group, gate in reversed(list(zip(groups, gates, strict=False))):  # the outermost of a layer's gates first
            surgery.replace(model, group.gate.module, gate.layer)
        for parameter in learning:
            parameter.requires_grad_(True)
        for module, mode in modes.items():
            module.training = mode
    return gates, record


def _knockoffs(model: nn.Module, stage: SCOP, task: TrainingTask) -> Callable[[Tensor], Tensor] | None:
    if stage.knockoffs == "shuffle":
        return None
    if stage.knockoffs == "given":
        if task.knockoffs is None:
            raise RecipeError("scop's 'knockoffs: given' needs the function: TrainingTask(knockoffs=...).")
        return task.knockoffs
    with seeded(stage.training.seed, model):
        return GaussianKnockoffs.fit(_float_inputs(model, task))


def _float_inputs(model: nn.Module, task: TrainingTask) -> Iterable[Tensor]:
    device = next(model.parameters()).device
    for _, batch in zip(range(_FITTED), task.epoch(0), strict=False):
        placed = on_device(batch, device)
        given = call_of(model, lambda placed=placed: task.loss(model, placed))  # type: ignore[misc]
        found = next((tensor for tensor in tensors_in(given) if tensor.is_floating_point() and tensor.ndim > 1), None)
        if found is None:
            raise RecipeError("Gaussian knockoffs are for inputs of floats, such as images; use 'knockoffs: shuffle'.")
        yield found


def call_of(model: nn.Module, run: Callable[[], Any]) -> Arguments:
    """What a model is called with while ``run`` runs; it does not run itself.

    Raises:
        StructureError: It is not called.
    """
    call = first_call([model], run)
    if call is None:
        raise StructureError("The task's loss does not call the model, so it is not known what the model takes.")
    return call[1:]


def few(whole: Arguments, count: int) -> Arguments:
    """The arguments of a call, less all but a few samples, and without labels."""
    samples = samples_in(whole)

    def cut(tensor: Tensor) -> Tensor:
        return tensor[:count] if tensor.ndim and tensor.shape[0] == samples else tensor

    args, kwargs = map_tensors(whole, cut)
    return args, {key: value for key, value in kwargs.items() if key != "labels"}


def seconds_of(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """The median time of a forward."""
    times = []
    with evaluating(model), torch.no_grad():
        model(*args, **kwargs)
        for _ in range(_TIMED):
            started = time.perf_counter()
            model(*args, **kwargs)
            times.append(time.perf_counter() - started)
    return statistics.median(times)
