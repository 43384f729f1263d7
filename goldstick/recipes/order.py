"""Order: the stages that act on a network as a whole, and where they stand among the others."""

from __future__ import annotations

from collections.abc import Sequence

from goldstick.algorithms import (
    SCOP,
    Algorithm,
    BlockReconstruction,
    CrossLayerEqualization,
    DataRequirement,
    Finetune,
    FoldBatchNorm,
    KVCache,
    Quantizer,
    RandomRotation,
    Stage,
    TrainedQuantizer,
)
from goldstick.core.scheme import Scheme


def rotation_of(stages: Sequence[Stage]) -> RandomRotation | None:
    """The stage that rotates, if any."""
    return next((stage for stage in stages if isinstance(stage, RandomRotation)), None)


def training_of(stages: Sequence[Stage]) -> tuple[Finetune | SCOP | TrainedQuantizer, ...]:
    """The stages that train, in their order."""
    return tuple(stage for stage in stages if isinstance(stage, Finetune | SCOP | TrainedQuantizer))


def misplaced(stages: Sequence[Stage]) -> list[str]:
    """What is wrong with the order and the number of the stages that act on the network as a whole."""
    problems = []
    for kind in (FoldBatchNorm, CrossLayerEqualization, RandomRotation, KVCache):
        found = [index for index, stage in enumerate(stages) if isinstance(stage, kind)]
        late = [stage for stage in stages[: (found or [0])[0]] if not isinstance(stage, FoldBatchNorm)]
        if len(found) > 1:
            problems.append(
                f"stages[{found[1]}].{kind.name}: a recipe has one such stage at most; leave one of them out."
            )
        elif kind is not KVCache and late:
            problems.append(
                f"stages[{found[0]}].{kind.name}: {late[0].name} comes before it and would decide on weights that "
                "are changed afterwards; make it the first stage."
            )
    return problems + _smoothing_for_nothing(stages) + _after_others(stages)


def _smoothing_for_nothing(stages: Sequence[Stage]) -> list[str]:
    """Stages that choose scales for a stage that rounds behind them, where there is none."""
    rounding = [index for index, stage in enumerate(stages) if isinstance(stage, Quantizer) and stage.quantizes]
    problems = []
    for index, stage in enumerate(stages):
        if not (isinstance(stage, Algorithm) and stage.smooths) or index in rounding:
            continue
        if index > max(rounding, default=-1):
            remedy = f"put it before {stages[rounding[-1]].name}" if rounding else "put one behind it, such as gptq"
            problems.append(
                f"stages[{index}].{stage.name}: it scales inputs for a stage that rounds, and none comes after it, so "
                f"it would do nothing; {remedy}."
            )
    return problems


def _after_others(stages: Sequence[Stage]) -> list[str]:
    """Stages that train and come after one that decides on the weights as they were before."""
    trained = [index for index, stage in enumerate(stages) if isinstance(stage, Finetune | SCOP | TrainedQuantizer)]
    early = [
        stage.name
        for stage in stages[: max(trained, default=0)]
        if stage.data_requirement is not DataRequirement.TRAINING and not isinstance(stage, RandomRotation | KVCache)
    ]
    problems = []
    if early:
        problems.append(
            f"stages[{trained[-1]}].{stages[trained[-1]].name}: it trains the float network, and {early[0]} comes "
            "before it; put the stages that train first."
        )
    in_float = [index for index in trained if not isinstance(stages[index], TrainedQuantizer)]
    quantizes = [index for index in trained if isinstance(stages[index], TrainedQuantizer)]
    if in_float and quantizes and in_float[-1] > quantizes[0]:
        late, first = stages[in_float[-1]].name, stages[quantizes[0]].name
        remedy = "prune before it" if late == SCOP.name else "fine-tune before it, or give it more epochs"
        problems.append(
            f"stages[{in_float[-1]}].{late}: {first} comes before it and trains all that stays float itself; {remedy}."
        )
    return problems


def unfinishable(stages: Sequence[Stage], schemes: Sequence[Scheme]) -> list[str]:
    """What is wrong with a stage that improves the codes of blocks.

    Args:
        stages: All stages.
        schemes: What the layers of the blocks become.
    """
    found = [index for index, stage in enumerate(stages) if isinstance(stage, BlockReconstruction)]
    if not found:
        return []
    place = f"stages[{found[0]}].{stages[found[0]].name}"
    later = [stage.name for stage in stages[found[0] + 1 :] if not isinstance(stage, KVCache)]
    problems = []
    if later:
        problems.append(f"{place}: {later[0]} comes after it; it improves what all others have decided, and is last.")
    if not schemes:
        problems.append(f"{place}: no stage before it quantizes a layer of a block; put rtn or gptq before it.")
    floats = [scheme.label for scheme in schemes if not scheme.weight.integers]
    if floats:
        problems.append(f"{place}: it searches integer codes, and {floats[0]} has none; leave it out.")
    rounded = [scheme.label for scheme in schemes if scheme.activation is not None]
    if rounded:
        problems.append(
            f"{place}: it searches weights for float activations, and {rounded[0]} quantizes them; leave it out."
        )
    return problems
