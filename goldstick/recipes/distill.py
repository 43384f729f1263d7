"""Distill: train the scales and norms of a rounded network in memory for what the float network predicts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from goldstick import surgery
from goldstick.algorithms import Distill
from goldstick.calibration.held_out import apart, held_count, too_few
from goldstick.core.error import weight_error
from goldstick.core.progress import Progress
from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import TrainingError
from goldstick.evaluation.forward import device_of, without_cache
from goldstick.recipes.resolve import Resolution
from goldstick.recipes.run import SiteResult
from goldstick.structure.network import Network, Site
from goldstick.structure.trace import evaluating, keeping_buffers
from goldstick.training import TrainingRecord, TrainingTask, agreement, train
from goldstick.training.checkpoint import digest_of
from goldstick.training.float_weights import in_float32
from goldstick.training.task import on_device

Batches = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Before:
    """What distillation must have been told before anything was rounded.

    Attributes:
        teacher: The float network.
        batches: The calibration batches, of which some are held out.
        weights: Site name → the float weight that it was decided from, [..., out, in]; filled while layers are rounded.
    """

    teacher: nn.Module
    batches: Batches
    weights: dict[str, Tensor]

    @classmethod
    def of(cls, stage: Distill, teacher: nn.Module, batches: Batches) -> Before:
        """The same, when it is known that the network can be distilled.

        Raises:
            QuantizationError: There are too few batches to hold some out.
            UsageError: The network gives no scores.
        """
        batches = [{**without_cache(teacher), **batch} for batch in apart(batches, stage.holdout, teacher)]
        if len(batches) < 2:
            raise too_few(stage.name, len(batches))
        with evaluating(teacher), torch.no_grad():
            agreement(teacher)(teacher, on_device(batches[-1], device_of(teacher)))
        return cls(teacher=teacher, batches=batches, weights={})


def distill(
    network: Network,
    resolution: Resolution,
    results: dict[str, SiteResult],
    before: Before,
    directory: Path | None,
    progress: Progress,
) -> dict[str, Any]:
    """Carry out a ``distill`` stage, in place.

    Args:
        network: The rounded network.
        resolution: What its recipe means.
        results: What became of each site; those whose scales have moved are changed.
        before: What was kept from before.
        directory: Where it leaves its state after each epoch, and goes on from one; ``None`` for nowhere.
        progress: Told the steps.

    Returns:
        The report's account of it.
    """
    stage = resolution.first(Distill)
    assert stage is not None
    model, loss = network.model, agreement(before.teacher)
    learned = len(before.batches) - held_count(len(before.batches), stage.holdout)
    lesson, held = before.batches[:learned], before.batches[learned:]

    def judged(one: nn.Module) -> float:
        with evaluating(one), keeping_buffers(one), torch.no_grad():
            values = [float(loss(one, on_device(batch, device_of(one)))) for batch in held]
        return sum(values) / len(values)

    told = [stage.name, asdict(stage), digest_of(before.teacher) if directory is not None else ""]
    task = TrainingTask(
        batches=lambda epoch: [lesson[place] for place in torch.randperm(len(lesson)).tolist()],
        loss=loss,
        validate=lambda one: -judged(one),
        directory=directory,
        identity=json.dumps(told, sort_keys=True),
    )
    norms = _norms(model) if stage.norms_rate else []
    start, first = judged(model), [one.detach().clone() for one in norms]
    sites = [network.by_name[name] for name in before.weights if _alone(resolution, name)]  # not what was trained
    stored = {site.name: _stored(resolution, site) for site in sites}
    scaled = surgery.scale_anew(network, sites, stage.rate, stored)
    record, failure = TrainingRecord(), ""
    try:
        learning = _learning(model, [*norms, *(one.scale.log_scale for one in scaled.values())])
        with keeping_buffers(model), learning, in_float32(model):
            record = train(model, task, stage.learns(), description=stage.name, progress=progress, evaluating=True)
    except TrainingError as error:
        failure = str(error)
    found = surgery.settle_scales(network, scaled)
    end = judged(model)
    better = not failure and end < start
    if better:
        _tell_errors(results, found, before.weights)
    else:
        surgery.settle_scales(network, scaled, as_they_were=True)
        for one, value in zip(norms, first, strict=True):
            one.data.copy_(value)
    return {
        "stage": stage.name,
        "steps": record.steps,
        "losses": list(record.losses),
        "scores": list(record.scores),
        "kept_epoch": record.kept_epoch if better else 0,
        "held_out": [start, end if better else start],
        "held_out_batches": len(held),
        "layers": len(scaled),
        "norms": len(norms),
        **({"stopped": failure} if failure else {}),
    }


def _tell_errors(
    results: dict[str, SiteResult], found: Mapping[str, QuantizedTensor], weights: Mapping[str, Tensor]
) -> None:
    """Let the results of sites say how far the weights with other scales lie from the float ones."""
    for name, tensor in found.items():
        error = weight_error(weights[name].to(tensor.scale.device), tensor)
        results[name] = replace(results[name], error=error)


@contextmanager
def _learning(model: nn.Module, chosen: Sequence[nn.Parameter]) -> Iterator[None]:
    """Inside, nothing but some of its parameters learns."""
    learning = {id(one) for one in chosen}
    asked = [(one, one.requires_grad) for one in model.parameters()]
    for one, _ in asked:
        one.requires_grad_(id(one) in learning)
    try:
        yield
    finally:
        for one, was in asked:
            one.requires_grad_(was)
            one.grad = None


def _norms(model: nn.Module) -> list[nn.Parameter]:
    """Gains and shifts: the parameters of modules that hold vectors alone, and no other modules."""
    found: dict[int, nn.Parameter] = {}
    for module in model.modules():
        own = list(module.parameters())
        if not any(True for _ in module.children()) and all(one.ndim == 1 and one.is_floating_point() for one in own):
            found.update({id(one): one for one in own})
    return list(found.values())


def _alone(resolution: Resolution, name: str) -> bool:
    """Whether a site's scales are its own, and nothing is stored that is made of them, as the minimums of Q4_1 are."""
    found = resolution.assignments[name]
    with_minimums = found.stage.float16_ranges and not found.scheme.weight.symmetric
    return name not in resolution.ties.values() and not with_minimums


def _stored(resolution: Resolution, site: Site) -> torch.dtype | None:
    """The dtype in which files hold a site's scales, where that is not the dtype they have here."""
    return torch.float16 if resolution.assignments[site.name].stage.float16_ranges else None
