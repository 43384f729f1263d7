"""What a sweep over the blocks will have to do, as far as forecasts ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goldstick.algorithms import BlockReconstruction, Validate
from goldstick.calibration.task import Work
from goldstick.jobs.plan.states import solved

if TYPE_CHECKING:
    from goldstick.jobs.plan.plan import Plan


def planned_work(plan: Plan) -> Work:
    """The work of a plan, in which nothing is decided."""
    found = plan.resolution
    return Work(
        tasks={one.site.name: one for one in solved(plan)},
        decide=lambda task, weight, state, notes: None,
        smoothing=found.smoothing,
        reconstruction=found.first(BlockReconstruction),
        validation=found.first(Validate),
    )
