"""Order: the stages that act on a network as a whole, and where they stand among the others."""

from __future__ import annotations

from collections.abc import Sequence

from goldstick.algorithms.base import rounds, smooths
from goldstick.algorithms.block_reconstruction import BlockReconstruction
from goldstick.algorithms.stage import CacheQuantizer, DataRequirement, NetworkStage, Place, Rotation, Stage
from goldstick.algorithms.validate import Validate
from goldstick.core.scheme import Scheme


def misplaced(stages: Sequence[Stage]) -> list[str]:
    """What is wrong with the order and the number of the stages that act on the network as a whole."""
    problems = []
    kinds: dict[type[Stage], list[int]] = {}
    for index, stage in enumerate(stages):
        if stage.once or stage.place <= Place.FLOAT:
            kinds.setdefault(_alike(stage), []).append(index)
    for found in sorted(kinds.values(), key=lambda found: stages[found[0]].place):
        first = stages[found[0]]
        late = [stage for stage in stages[: found[0]] if stage.place >= first.place]
        if first.once and len(found) > 1:
            problems.append(
                f"stages[{found[1]}].{stages[found[1]].name}: a recipe has one such stage at most; leave one of them "
                "out."
            )
        elif first.place <= Place.FLOAT and late:
            problems.append(
                f"stages[{found[0]}].{first.name}: {late[0].name} comes before it and would decide on weights that "
                "are changed afterwards; make it the first stage."
            )
    problems += _smoothing_for_nothing(stages) + _judging_nothing(stages) + _after_others(stages)
    return problems + _at_the_end(stages)


def _alike(stage: Stage) -> type[Stage]:
    """What a stage counts as where a recipe has one at most: all rotations are alike, and all caches."""
    return next((kind for kind in (Rotation, CacheQuantizer) if isinstance(stage, kind)), type(stage))


def _smoothing_for_nothing(stages: Sequence[Stage]) -> list[str]:
    """Stages that choose scales for a stage that rounds behind them, where there is none."""
    rounding = [index for index, stage in enumerate(stages) if rounds(stage)]
    problems = []
    for index, stage in enumerate(stages):
        if not smooths(stage) or index in rounding:
            continue
        if index > max(rounding, default=-1):
            remedy = f"put it before {stages[rounding[-1]].name}" if rounding else "put one behind it, such as gptq"
            problems.append(
                f"stages[{index}].{stage.name}: it scales inputs for a stage that rounds, and none comes after it, so "
                f"it would do nothing; {remedy}."
            )
    return problems


def _judging_nothing(stages: Sequence[Stage]) -> list[str]:
    """A stage that judges what calibration has given, where no stage before it is calibrated."""
    problems = []
    for index, stage in enumerate(stages):
        before = [one for one in stages[:index] if rounds(one) or smooths(one)]
        if isinstance(stage, Validate) and all(one.data_requirement is DataRequirement.NONE for one in before):
            problems.append(
                f"stages[{index}].{stage.name}: no stage before it is calibrated, so there is nothing to judge; put it "
                "behind one that is, such as gptq."
            )
    return problems


def _at_the_end(stages: Sequence[Stage]) -> list[str]:
    """What is wrong with a stage that comes behind all others."""
    problems = []
    for index, stage in enumerate(stages):
        if stage.place is not Place.END:
            continue
        place = f"stages[{index}].{stage.name}"
        if later := [one.name for one in stages[index + 1 :] if one.place < Place.END]:
            problems.append(f"{place}: {later[0]} comes after it; it trains what all others have left, and is last.")
        if not any(rounds(one) for one in stages[:index]):
            problems.append(f"{place}: no stage before it quantizes a layer, so there are no scales to learn.")
    return problems


def _after_others(stages: Sequence[Stage]) -> list[str]:
    """Stages that change the float network and come after one that decides on the weights as they were before."""
    acting = [(index, stage) for index, stage in enumerate(stages) if isinstance(stage, NetworkStage)]
    problems = []
    if acting:
        index, last = acting[-1]
        what = "train" if last.trains else "change"
        if early := [stage.name for stage in stages[:index] if not stage.before_training]:
            problems.append(
                f"stages[{index}].{last.name}: it {what}s the float network, and {early[0]} comes before it; put the "
                f"stages that {what}{'' if last.trains else ' it'} first."
            )
    coded = [index for index, stage in acting if stage.leaves_codes]
    in_float = [(index, stage) for index, stage in acting if not stage.leaves_codes]
    if coded and in_float and in_float[-1][0] > coded[0]:
        index, late = in_float[-1]
        problems.append(
            f"stages[{index}].{late.name}: {stages[coded[0]].name} comes before it and trains all that stays float "
            f"itself; {late.remedy}."
        )
    return problems


def unfinishable(stages: Sequence[Stage], schemes: Sequence[Scheme]) -> list[str]:
    """What is wrong with a stage that improves the codes of blocks.

    Args:
        stages: All stages.
        schemes: What the layers of the blocks become.
    """
    found = [index for index, stage in enumerate(stages) if stage.place is Place.LAST]
    if not found:
        return []
    place = f"stages[{found[0]}].{stages[found[0]].name}"
    later = [stage.name for stage in stages[found[0] + 1 :] if stage.place <= Place.LAST]
    problems = []
    if later:
        problems.append(f"{place}: {later[0]} comes after it; it improves what all others have decided, and is last.")
    if not schemes:
        problems.append(
            f"{place}: no stage before it quantizes a layer of a block; put rtn or gptq before it. A network without "
            "blocks (modules of one kind in a list, such as model.layers) cannot have it."
        )
    last = stages[found[0]]
    any_grid = isinstance(last, BlockReconstruction) and last.any_grid
    others = [scheme.label for scheme in schemes if not scheme.weight.plain]
    if others and not any_grid:
        problems.append(f"{place}: it searches integer codes with float scales, and {others[0]} has none; take learn.")
    return problems
