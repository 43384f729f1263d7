"""A run in several processes: whether they are about to do the same, and what all but the first do."""

from __future__ import annotations

from pathlib import Path

from goldstick.calibration.data.samples import CalibrationSet
from goldstick.calibration.memory_budget import default_budget
from goldstick.checkpoint.journal import training_directory
from goldstick.core.processes import process_count, rank, told_by_first
from goldstick.core.progress import quiet
from goldstick.core.ranks import Ranks
from goldstick.errors import RankError, UsageError
from goldstick.jobs.load.load import find_device
from goldstick.jobs.plan.plan import Plan
from goldstick.jobs.quantize.by_blocks import prepare
from goldstick.jobs.quantize.run_identity import digest_of, run_identity
from goldstick.jobs.quantize.write import Calibrate, in_memory, train_alongside
from goldstick.report import Report


def agree(ranks: Ranks, plan: Plan, data: CalibrationSet | None) -> None:
    """See to it that all processes of a run are about to do the same.

    The files of the source are compared by name and size: the first process alone reads them through.

    Raises:
        UsageError: They are not; the first process says which of them differ, and in what. The others end.
    """
    files = plan.source.files_read
    sizes = [(file.name, file.stat().st_size) for file in files]
    own = run_identity(plan, data, {}) | {"set of source files": digest_of(sorted(sizes))}
    each = ranks.gather(own)
    differing = [
        f"rank {rank} has another {' and another '.join(name for name in own if other[name] != each[0][name])}"
        for rank, other in enumerate(each)
        if other != each[0]
    ]
    if differing:
        if not ranks.first:
            raise SystemExit(UsageError.exit_code)
        raise UsageError(
            f"The processes of this run are not of one mind: {'; '.join(differing)} than rank 0. Start all of them "
            "with the same command, data and versions."
        )


def help_the_first(
    plan: Plan, output: str | Path, device: str, calibrate: Calibrate, max_memory: int | None = None
) -> Report:
    """What further processes that torchrun started do, while the first carries out a plan: take part, and wait.

    Where the first has failed, or cannot be reached, they end and say nothing: what is to be said, the first says.
    """
    target = find_device(device)
    try:
        if plan.resolution.trains:
            train_alongside(plan, in_memory(plan, target, calibrate, training_directory(Path(output))), quiet)
        else:
            ranks = Ranks.joined()
            budget = default_budget() if max_memory is None else max_memory
            blockwise = prepare(plan, target, calibrate, budget, quiet, ranks)
            if blockwise is None:
                raise idle_ranks()
            agree(ranks, plan, blockwise.data)
            if ranks.of(False):
                blockwise.assist()
        return Report.from_json(told_by_first(""))
    except RankError as error:
        raise SystemExit(RankError.exit_code) from error


def refuse_idle_ranks(plan: Plan, device: str, measures: bool = False) -> None:
    """Refuse several processes where all but the first would only wait, before any of them waits for another.

    Args:
        plan: The plan.
        device: Where weights are rounded.
        measures: Whether an importance matrix is to be kept, which one process alone does.

    Raises:
        UsageError: There are several, and they have nothing to do together.
    """
    if process_count() > 1 and measures:
        raise UsageError("An importance matrix (save_importance) is kept by a run in one process; start it alone.")
    if process_count() > 1 and not plan.resolution.trains and not (plan.by_blocks and device == "cpu"):
        raise idle_ranks()


def idle_ranks() -> UsageError:
    """Why a run is refused in several processes; their variables may be left from another launcher."""
    return UsageError(
        f"WORLD_SIZE={process_count()} and RANK={rank()} say that this is one of {process_count()} processes, and this "
        "run has nothing for them to do: no stage of this recipe trains, and the model is not calibrated block by "
        "block on processors. Start one process, or unset RANK and WORLD_SIZE to run alone."
    )
