"""Inputs weighted by what an error of each token costs further on, for stages with an objective beyond the layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from goldstick.algorithms.base import Guide, Quantizer
from goldstick.calibration.end_gradients import output_weights, relative_weights
from goldstick.calibration.observing import Rows
from goldstick.calibration.original import Original
from goldstick.calibration.task import Assignment
from goldstick.core.cross_covariance import CrossCovarianceObserver
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.core.ranks import Ranks


def weights_in_block(
    tasks: Mapping[str, Assignment], original: Original, gradients: Sequence[Tensor] | None, ranks: Ranks
) -> dict[str, Sequence[Tensor]]:
    """How much each token counts at the outputs of the layers of a block, whose stages have such an objective.

    Args:
        tasks: Site name → what happens there.
        original: The float block.
        gradients: ∂L/∂y of what it gives, batch by batch; ``None`` where no loss is known, and for stages whose
            objective is the block's output.
        ranks: Who has further batches.
    """
    first = sum(ranks.gather(len(original.runs))[: ranks.rank])
    found: dict[str, Sequence[Tensor]] = {}
    guides: dict[Guide, list[Assignment]] = {}
    for task in tasks.values():
        if task.stage.guide is not None and task.site.layout.multiplied and not task.site.matrix_shape[:-2]:
            guides.setdefault(task.stage.guide, []).append(task)
    for guide, chosen in guides.items():
        if guide.objective == "loss" and gradients is None:
            continue
        layers = {task.site.name: original.counterpart(task.site.module) for task in chosen}
        each = []
        for index, run in enumerate(original.runs):
            ahead = gradients[index] if guide.objective == "loss" and gradients is not None else None
            each.append(output_weights(layers, run, ahead, guide.parts, first + index))
        for name in layers:
            if not ranks.any(not all(name in batch for batch in each)):
                found[name] = relative_weights([batch[name] for batch in each], guide.mix, ranks)
    return found


def weighted_groups(
    stage: Quantizer,
    outputs: int,
    plain: InputObserver,
    weights: Sequence[Tensor],
    rows: Callable[[], Iterable[tuple[int, Rows]]],
    scale: Tensor | None,
    ranks: Ranks,
) -> OutputGroups | None:
    """What each part of a layer's outputs sees of its inputs: x_t · √a_k(t), in exact sums.

    Args:
        stage: The layer's stage.
        outputs: How many outputs it has.
        plain: Its inputs as they are.
        weights: √a, float32 [..., parts], batch by batch.
        rows: Gives, as often as it is asked, each batch's number, inputs, mask and the inputs of the float model.
        scale: What the inputs were divided by and the float model's were not.
        ranks: Who has further batches.

    Returns:
        ``None`` where weights and inputs are not of the same tokens.
    """
    assert stage.guide is not None  # which says what the weights are
    parts = min(stage.guide.parts, outputs)
    drifts = isinstance(plain, CrossCovarianceObserver) and stage.needs_float_inputs
    found: list[tuple[slice, InputObserver]] = []
    places = torch.arange(outputs).tensor_split(parts)
    for part, place in enumerate(places):
        cross = CrossCovarianceObserver(plain.in_features, scale) if drifts else None
        observer = cross or InputObserver(plain.in_features)
        for look in ("observe_range", "observe"):
            fit = True
            for index, (x, mask, floats) in rows():
                root = weights[index][..., part : part + 1]
                fit = root.numel() * x.shape[-1] == x.numel()
                if not fit:
                    break
                root = root.reshape(*x.shape[:-1], 1)
                more = {} if cross is None else {"original": None if floats is None else floats.float() * root}
                getattr(observer, look)(x.float() * root, mask, **more)
            if ranks.any(not fit):
                return None
            (observer.share_ranges if look == "observe_range" else observer.share)(ranks)
        observer.last_use = True
        found.append((slice(int(place[0]), int(place[-1]) + 1), observer))
    return OutputGroups(parts=found, plain=plain)
