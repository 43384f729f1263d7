"""What a run takes of disks while it runs, from shapes alone."""

from __future__ import annotations

from dataclasses import dataclass

from goldstick.jobs.plan.plan import Plan
from goldstick.jobs.plan.planned_work import planned_work
from goldstick.jobs.plan.states import bytes_of_states


@dataclass(frozen=True, kw_only=True)
class DiskForecast:
    """Bytes on disk at most.

    Attributes:
        beside: Beside the output while it is made, on its disk.
        temporary: In temporary files, where TMPDIR says.
    """

    beside: int
    temporary: int


def forecast_disk(plan: Plan) -> DiskForecast:
    """What a plan takes of disks beside its output.

    A run over blocks keeps what a block is given until what it gives is written; the float model's, too, where that
    runs beside. Gradients of the loss at the end take what every block is given, or the gradients there, and one more.
    Gradients within a block wait on disk where half of what is free suffices, and are not in it.
    """
    if not plan.calibrated:
        return DiskForecast(beside=0, temporary=0)
    work, states = planned_work(plan), bytes_of_states(plan)
    beside = 2 * states * (2 if work.needs_float_inputs else 1) if plan.by_blocks else 0
    shards = plan.bytes_after if plan.by_blocks and plan.format.in_gguf else 0  # its one file is made of them
    files = len(plan.network.blocks) + 1 if work.needs_end_gradients else 0
    return DiskForecast(beside=beside + shards, temporary=files * states)
