"""Inputs weighted by what an error of each token costs further on, for stages with an objective beyond the layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.algorithms.base import Guide
from goldstick.calibration.end_gradients import output_weights, relative_weights
from goldstick.calibration.gradient_passes import GradientPasses, Gradients
from goldstick.calibration.observing import Rows
from goldstick.calibration.original import Original
from goldstick.calibration.task import Assignment
from goldstick.core.cross_covariance import CrossCovarianceObserver
from goldstick.core.diagonal_observer import DiagonalObserver
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups, neighbours
from goldstick.core.ranks import Ranks
from goldstick.core.token_mask import TokenMask

_Across = Mapping[str, Sequence[tuple[slice, InputObserver]]]


@dataclass(frozen=True, kw_only=True)
class TokenWeights:
    """How much each token counts at the outputs of a layer.

    Attributes:
        parts: Into how many parts its outputs are taken apart, at most; 1 where rows share scales.
        roots: √a, float32 [..., parts], batch by batch, in a unit of each part's own.
        sizes: What these units are for a.
        across: Neighbouring outputs that are looked at together, and the gradients there; empty for none.
    """

    parts: int
    roots: Sequence[Tensor]
    sizes: Sequence[float]
    across: Sequence[tuple[slice, InputObserver]]


def weights_in_block(
    guided: Mapping[Guide, Sequence[Assignment]],
    original: Original,
    gradients: Sequence[Tensor] | None,
    masks: Sequence[TokenMask],
    ranks: Ranks,
    learned: int,
) -> dict[Guide, dict[str, TokenWeights]]:
    """How much each token counts at the outputs of the layers of a block, whose stages have such an objective.

    Args:
        guided: Guide → the tasks that it is meant for.
        original: The float block.
        gradients: ∂L/∂y of what it gives, batch by batch; ``None`` where no loss is known, and for stages whose
            objective is the block's output.
        masks: Which tokens of each batch count.
        ranks: Who has further batches.
        learned: How many of the batches, the first, layers are fitted to; the others judge them.

    Returns:
        Guide → site name → that; layers of which it is not known are left out.
    """
    first = sum(ranks.gather(len(original.runs))[: ranks.rank])
    found: dict[Guide, dict[str, TokenWeights]] = {}
    for guide, tasks in guided.items():
        chosen = [task for task in tasks if task.site.layout.multiplied and not task.site.matrix_shape[:-2]]
        known = found.setdefault(guide, {})
        if not chosen or (guide.objective == "loss" and gradients is None):
            continue
        layers = {task.site.name: original.counterpart(task.site.module) for task in chosen}
        ahead = gradients if guide.objective == "loss" else None
        parts = {task.site.name: guide.parts if _apart(task) else 1 for task in chosen}
        two_sided = [task.site for task in chosen if guide.two_sided and _apart(task)]
        across = {site.name: neighbours(site.matrix_shape[-2]) for site in two_sided}
        passes = GradientPasses(
            layers=layers, runs=original.runs[:learned], ahead=ahead, masks=masks, first=first, twice=across
        )
        each = []
        for batch in passes.once():
            each.append({name: output_weights(gradient, parts[name]) for name, (gradient, _) in batch.items()})
            _look(across, batch, "observe_range")
        _share(across, "share_ranges", ranks)
        for batch in passes.again() if across else ():
            _look(across, batch, "observe")
        _share(across, "share", ranks)
        for name in layers:
            if not ranks.any(not all(name in batch for batch in each)):
                roots, sizes = relative_weights([batch[name] for batch in each], guide.mix, ranks)
                known[name] = TokenWeights(parts=parts[name], roots=roots, sizes=sizes, across=across.get(name, ()))
    return found


def _apart(task: Assignment) -> bool:
    """Whether rows can be solved apart."""
    return not task.scheme.weight.rows_share_scales


def _look(across: _Across, batch: Gradients, look: str) -> None:
    for name, parts in across.items():
        if name in batch:
            gradient, mask = batch[name]
            for part, observer in parts:
                getattr(observer, look)(gradient[..., part], mask)


def _share(across: _Across, share: str, ranks: Ranks) -> None:
    for parts in across.values():
        for _, observer in parts:
            getattr(observer, share)(ranks)


def weighted_groups(
    task: Assignment,
    plain: InputObserver,
    weights: TokenWeights,
    rows: Callable[[], Iterable[tuple[int, Rows]]],
    scale: Tensor | None,
    wanted: Collection[str] | None,
    ranks: Ranks,
) -> OutputGroups | None:
    """What each part of a layer's outputs sees of its inputs: x_t · √a_k(t), in exact sums.

    Args:
        task: What happens to the layer.
        plain: Its inputs as they are.
        weights: How much each token counts.
        rows: Gives, as often as it is asked, each batch's number, inputs, mask and the inputs of the float model.
        scale: What the inputs were divided by and the float model's were not.
        wanted: The statistics that will be asked for; ``None`` for any.
        ranks: Who has further batches.

    Returns:
        ``None`` where weights and inputs are not of the same tokens.
    """
    outputs = task.site.matrix_shape[-2]
    parts = min(weights.parts, outputs)
    drifts = isinstance(plain, CrossCovarianceObserver) and task.stage.needs_float_inputs
    found: list[tuple[slice, InputObserver]] = []
    places = torch.arange(outputs).tensor_split(parts)
    for part, place in enumerate(places):
        cross = CrossCovarianceObserver(plain.in_features, scale) if drifts else None
        kind = DiagonalObserver if wanted is not None and set(wanted) == {"mean_square"} else InputObserver
        observer = cross or kind(plain.in_features)
        for look in ("observe_range", "observe"):
            fit = True
            for index, (x, mask, floats) in rows():
                root = weights.roots[index][..., part : part + 1]
                fit = root.numel() * x.shape[-1] == x.numel()
                if not fit:
                    break
                root = root.reshape(*x.shape[:-1], 1)
                more = {} if cross is None else {"original": None if floats is None else floats.float() * root}
                getattr(observer, look)(x.float() * root, mask, **more)
            if ranks.any(not fit):
                return None
            (observer.share_ranges if look == "observe_range" else observer.share)(ranks)
        observer.last_use = not weights.across  # rows come one after the other
        found.append((slice(int(place[0]), int(place[-1]) + 1), observer))
    divided = not (task.stage.shares_rows or weights.across)
    return OutputGroups(
        parts=found, plain=plain, sizes=weights.sizes, across=weights.across, ranks=ranks if divided else Ranks()
    )


def objective_of(guide: Guide, state: object) -> str:
    """What the report says of a layer: by which error it was solved."""
    if not isinstance(state, OutputGroups):
        return guide.unknown
    return f"{guide.objective}, two-sided" if state.across else guide.objective
