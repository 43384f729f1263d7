"""Effort: what a recipe of words does beyond its words, so that it loses less for more time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from goldstick.algorithms import (
    AWQ,
    GPTQ,
    RTN,
    BlockReconstruction,
    DataRequirement,
    Descent,
    Learn,
    Stage,
    Validate,
)
from goldstick.algorithms.base import Quantizer, rounds, smooths
from goldstick.algorithms.stage import Place

Effort = Literal["fast", "default", "best"]

#: Less of it fits the calibration text better and other texts worse; at few bits the first weighs more.
_DAMPING, _MANY_BITS = 0.1, 4
#: Rows of random tokens keep what fits a text from costing others; the fewer the bits, the more they cost the text.
_RANDOM_TOKENS, _RANDOM_TOKENS_OF_FEW_BITS = 0.25, 0.0625
#: Ranges of small groups, clipped for the calibration text, do the same.
_SMALL_GROUPS = 32
#: Inputs with fewer bits are more of the error than weights are, and learning alone sees them.
_INPUT_BITS = 8
#: The fewer the bits, the further codes begin from where they end: steps for each block, at most so many bits.
_STEPS = {2: 1000, 3: 600}
#: With more bits, and with a start that has the loss at the end in view, which learning alters little.
_FEW_STEPS = 100


def with_effort(stages: Sequence[Stage], effort: Effort) -> tuple[Stage, ...]:
    """The stages, with what an effort adds to those that are calibrated; see docs/effort.md.

    ``fast`` leaves all as it is. ``default`` lets GPTQ and ``descent`` make up for the errors of earlier layers, damps
    their Hessian more from 4 bits on, so that codes fit other texts, too, and lets two cycles of coordinate descent
    follow GPTQ; AWQ clips no ranges of small groups, for the same reason; and layers are judged on rows held out.
    ``best`` has the loss at the end in view instead of the layer's error: GPTQ looks at it from two sides, and the
    codes of each block are learned for it, for longer where they have two bits or three.

    Recipes that look at no data, or whose data say ranges alone, or that train the network, stay as they are. GGUF's
    blocks hold scales of float16, which neither cycles nor learning keep: with ``best`` they have the loss at the end.
    """
    if not _has_efforts(stages, effort):
        return tuple(stages)
    found: list[Stage] = [_solving_well(stage) for stage in stages]
    if effort == "best":
        found = [_for_the_end(stage) for stage in found]
    if not any(isinstance(stage, Validate) for stage in found):
        found.insert(_behind_layers(found), Validate())
    finished = any(isinstance(stage, BlockReconstruction) for stage in found)
    blocks = any(isinstance(stage, Quantizer) and stage.float16_ranges for stage in found)
    if effort == "best" and not finished and not blocks:
        near = any(isinstance(stage, GPTQ) and stage.two_sided for stage in found)
        others = _FEW_STEPS if near else Learn().steps
        steps = next((steps for bits, steps in _STEPS.items() if _fewest_bits(found) <= bits), others)
        found.insert(_behind_layers(found), Learn(steps=steps, objective="loss"))
    return tuple(found)


def random_tokens(stages: Sequence[Stage], effort: Effort) -> float:
    """How many rows of random tokens an effort shows stages beside those of a text, as a part of these.

    They are for what is fitted to inputs: a Hessian's columns, and what learns. AWQ's scales alone gained nothing clear
    by them, and one range of a whole input would be that of tokens which no text has.
    """
    fitted = any(isinstance(stage, GPTQ | Descent | Learn) for stage in with_effort(stages, effort))
    if not fitted or not _has_efforts(stages, effort) or any(map(_has_one_range, stages)):
        return 0.0
    if _fewest_bits(stages) >= _MANY_BITS:
        return _RANDOM_TOKENS
    return 0.0 if effort == "best" else _RANDOM_TOKENS_OF_FEW_BITS


def _has_efforts(stages: Sequence[Stage], effort: Effort) -> bool:
    """Whether an effort adds anything: data decide on codes or scales, and nothing trains the network."""
    solved = [stage for stage in stages if (rounds(stage) or smooths(stage)) and not isinstance(stage, RTN)]
    calibrated = any(stage.data_requirement is DataRequirement.BLOCKWISE for stage in solved)
    return effort != "fast" and calibrated and not any(stage.trains for stage in stages)


def _has_one_range(stage: Stage) -> bool:
    """Whether a layer's input has one range, which is that of all inputs seen."""
    inputs = [one.activation for one in stage.schemes()] if isinstance(stage, Quantizer) else []
    return any(one is not None and one.granularity == "tensor" for one in inputs)


def _solving_well(stage: Stage) -> Stage:
    if isinstance(stage, AWQ) and stage.quantize and _in_small_groups(stage):
        return dataclasses.replace(stage, clip=False)
    if not isinstance(stage, GPTQ | Descent):
        return stage
    damping = max(stage.damping, _DAMPING) if _fewest_bits([stage]) >= _MANY_BITS else stage.damping
    if isinstance(stage, Descent):
        return dataclasses.replace(stage, gptaq=True, damping=damping)
    cycles = stage.cycles if stage.float16_ranges else max(stage.cycles, 2)
    return dataclasses.replace(stage, gptaq=True, cycles=cycles, damping=damping)


def _in_small_groups(stage: AWQ) -> bool:
    grids = [scheme.weight for scheme in stage.schemes()]
    small = all(grid.group_size is not None and grid.group_size <= _SMALL_GROUPS for grid in grids)
    return small and _fewest_bits([stage]) >= _MANY_BITS


def _for_the_end(stage: Stage) -> Stage:
    """GPTQ with the loss at the end in view, unless inputs of few bits decide on it."""
    if not isinstance(stage, GPTQ) or stage.objective != "layer":
        return stage
    inputs = [scheme.activation.bits for scheme in stage.schemes() if scheme.activation is not None]
    if min(inputs, default=_INPUT_BITS) < _INPUT_BITS:
        return stage
    return dataclasses.replace(stage, objective="loss", two_sided=True)


def _behind_layers(stages: Sequence[Stage]) -> int:
    """The place behind all that decides on layers."""
    return max(index for index, stage in enumerate(stages) if stage.place is Place.LAYERS) + 1


def _fewest_bits(stages: Sequence[Stage]) -> int:
    found = (scheme.weight.bits for stage in stages if isinstance(stage, Quantizer) for scheme in stage.schemes())
    return min(found, default=_MANY_BITS)
