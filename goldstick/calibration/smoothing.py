"""Smoothing: stages that move a per-channel scale from the inputs of a group into its weights, before these round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial

import torch
from torch import Tensor

from goldstick import surgery
from goldstick.algorithms.base import Guide, Member
from goldstick.calibration.input_factors import InputMultipliers
from goldstick.calibration.observing import observe_group
from goldstick.calibration.passes import Passes
from goldstick.calibration.task import Assignment, Work
from goldstick.core.edits import Fold, Quantize, SetWeight
from goldstick.core.inputs import InputObserver
from goldstick.core.output_groups import OutputGroups
from goldstick.core.token_mask import TokenMask
from goldstick.errors import QuantizationError
from goldstick.structure.network import Network
from goldstick.structure.probe.findings import FoldPair

Notes = dict[str, float | str]

#: Gives the inputs of a group as a layer of it weights them, for a guide; ``None`` where it is not known by what.
Weighted = Callable[[Assignment, Guide | None, InputObserver], OutputGroups | None]

_NO_FOLD_TARGET = "no norm or linear layer before it can absorb a scale"


def smooth_group(
    network: Network,
    work: Work,
    group: Sequence[Assignment],
    pairs: Sequence[FoldPair],
    passes: Passes,
    masks: Sequence[TokenMask],
    edits: MutableMapping[str, Quantize],
    multipliers: InputMultipliers,
    weighted: Weighted,
    absorbed: Callable[[Fold], None],
) -> tuple[Notes, Tensor | None]:
    """Let the smoothing stages act on the group at hand, in their order; what they noted, and the scale of all.

    The scale, float64 [in], is what the group's inputs are divided by now, in whichever way; ``None`` for nothing.

    A scale s goes into the norm (or the linear layer) that the group's inputs come from, as the structure probe found:
    it gives x / s afterwards, and the columns of all layers that read x are multiplied by s. Where there is none, the
    layers divide x themselves, if the stage and they are made for it. Then the passes start over, so that what comes
    next sees exactly what the finished block will give.

    Args:
        network: The network.
        work: The stages.
        group: The layers.
        pairs: What can absorb a scale.
        passes: The passes, with the group at hand.
        masks: Which tokens of each batch count.
        edits: What was decided in this block so far; a layer that absorbs a scale is changed there, too.
        multipliers: What divides the inputs of layers themselves.
        weighted: Gives the inputs as the layers weight them, for stages with such an objective.
        absorbed: Told what a layer of ``edits`` has absorbed.
    """
    names = {task.site.name for task in group}
    pair = _fold_target(pairs, names)
    notes: Notes = {}
    folded: Tensor | None = None
    for smoothing in work.smoothing:
        meant = names & smoothing.sites
        wanted = smoothing.stage.multiplies and all(task.multiplied for task in group)
        kept = multipliers.obstacle(group) if wanted else None
        multiplies = wanted and kept is None
        if not meant:
            continue
        if meant != names:
            found: Mapping[str, float | str] = {"unbalanced": "the stage is meant for a part of its input group only"}
        elif pair is None and not multiplies:
            found = {"unbalanced": f"{_NO_FOLD_TARGET}, and {kept}" if kept else _NO_FOLD_TARGET}
        else:
            observer = observe_group(passes, group, masks)
            members = [
                Member(
                    site=task.site,
                    weight=network.weight(task.site),
                    scheme=task.scheme,
                    compensated=task.stage.compensates,
                    weighted=partial(weighted, task, smoothing.stage.scale_guide, observer),
                )
                for task in group
            ]
            try:
                found_scale = passes.ranks.of(smoothing.stage.smooth_scale(members, observer))
            except QuantizationError as error:
                raise QuantizationError(
                    f"{', '.join(sorted(names))} cannot be smoothed: {error} Check the source checkpoint, or exclude "
                    "these layers (targets: {exclude: [...]})."
                ) from error
            observer.release()
            found = found_scale.notes
            if found_scale.scale is not None:
                obstacle = _fold(network, pair, found_scale.scale, edits, absorbed)
                if obstacle is None:
                    passes.again()
                    folded = found_scale.scale.double() if folded is None else folded * found_scale.scale.double()
                elif not multiplies:
                    found = {**found, "unbalanced": obstacle}
                elif multipliers.divide(group, found_scale.scale):
                    found = {**found, "multiplied": obstacle}
                    passes.again()
                else:
                    found = {**found, "unbalanced": f"{obstacle}, and neither can the layers in their dtype"}
        notes |= {f"{smoothing.stage.name}_{name}": value for name, value in found.items()}
    return notes, _divided_by(folded, multipliers.among(group))


def _divided_by(folded: Tensor | None, multiplied: Tensor | None) -> Tensor | None:
    """What inputs are divided by; of a multiplier its inverse, not s: columns make up for what is stored."""
    if multiplied is None:
        return folded
    return 1 / multiplied.double() if folded is None else folded.to(multiplied.device) / multiplied.double()


def _fold_target(pairs: Sequence[FoldPair], names: set[str]) -> FoldPair | None:
    """The pair for exactly these layers (others that read the input may be float); a norm rather than a linear."""
    fitting = [pair for pair in pairs if names <= set(pair.consumers)]
    return min(fitting, key=lambda pair: pair.kind != "norm", default=None)


def _fold(
    network: Network,
    pair: FoldPair | None,
    scale: Tensor,
    edits: MutableMapping[str, Quantize],
    told: Callable[[Fold], None],
) -> str | None:
    """Fold a scale into what can absorb it; the reason where nothing can, and then nothing is changed."""
    if pair is None:
        return _NO_FOLD_TARGET
    fold = pair.fold(scale)
    producer = edits.get(fold.producer)
    if producer is not None and not _takes_factors(producer):
        return f"the scales of {fold.producer} lie on a grid, which holds no factor"
    absorbed = _absorbed(fold, edits)
    if absorbed is not None and not _usable(absorbed.tensor.scale):
        return f"the scales of {fold.producer} cannot hold it in their dtype"
    surgery.apply(network, [fold])
    if absorbed is not None:
        edits[fold.producer] = absorbed
        surgery.apply(network, [SetWeight(site=fold.producer, weight=absorbed.tensor.dequantize())])
        told(fold)
    return None


def _absorbed(fold: Fold, edits: Mapping[str, Quantize]) -> Quantize | None:
    """The producer's quantization with the fold in it, or ``None`` where it is float.

    Its codes stay, since rounding a row does not mind a factor; its scales absorb the fold.
    """
    producer = edits.get(fold.producer)
    if producer is None:
        return None
    scale = fold.divide(producer.tensor.scale)
    return dataclasses.replace(producer, tensor=dataclasses.replace(producer.tensor, scale=scale))


def _takes_factors(producer: Quantize) -> bool:
    """Whether each row has float scales of its own."""
    grid = producer.tensor.grid
    return grid.scale is None and grid.granularity in ("channel", "group")


def _usable(scale: Tensor) -> bool:
    return bool((torch.isfinite(scale) & (scale > 0)).all())
