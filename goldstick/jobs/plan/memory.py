"""What a run over blocks holds in memory at most, from shapes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goldstick.calibration.memory_budget import BASE_MEMORY
from goldstick.jobs.plan.planned_work import planned_work
from goldstick.jobs.plan.states import bytes_of_states
from goldstick.structure.blocks import block_of

if TYPE_CHECKING:
    from goldstick.jobs.plan.plan import Plan

#: Bytes for each weight of a block that learns, measured: three logits with gradients and moments are 48 of them, the
#: rest is the weight itself, what it is made of, and what an optimizer's step and a pass back hold for one layer.
_LEARNING = 106
#: Bytes of the modules that an optimizer imports.
_OPTIMIZER = 64_000_000


def memory_by_blocks(plan: Plan) -> int:
    """Bytes with one block in memory, whose batches go one by one.

    A block that is judged or learns beside the float one holds what that gives for all batches.
    """
    nbytes: dict[str | None, int] = {}
    numbers: dict[str | None, int] = {}
    for tensor in plan.tensors:
        block = block_of(tensor.parameter, plan.network.blocks)
        nbytes[block] = nbytes.get(block, 0) + tensor.source.nbytes
        count = tensor.source.shape.numel()  # outside the blocks, one matrix is turned at a time
        numbers[block] = numbers.get(block, 0) + count if block else max(numbers.get(block, 0), count)
    outside, largest = nbytes.pop(None, 0), max(nbytes.values())
    work = planned_work(plan)
    beside = 1 if plan.calibrated and work.needs_float_inputs else 0
    working = (2.5 + beside) * largest + (1 + beside) * 4 * 8 * _widest_observed(plan) ** 2
    learns = work.reconstruction is not None
    learning = _OPTIMIZER + (2 + beside) * largest + _LEARNING * max(numbers.values()) if learns else 0
    turning = largest + 8 * max(numbers.values()) if plan.rotation is not None else 0
    given = bytes_of_states(plan) if learns or work.validation is not None else 0
    return int(BASE_MEMORY + outside + given + max(working, learning, turning))


def _widest_observed(plan: Plan) -> int:
    """Inputs of the widest layer of which a statistic is taken."""
    assignments = [tensor.assignment for tensor in plan.tensors if tensor.assignment is not None]
    smoothed = bool(plan.resolution.smoothing)
    observed = [found.site for found in assignments if smoothed or found.stage.needs_inputs(found.scheme)]
    return max((site.in_features for site in observed), default=0)
