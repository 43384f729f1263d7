"""A run in several processes: whether they are about to do the same, and what all but the first do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from goldstick.algorithms import Distill
from goldstick.calibration.data.samples import CalibrationSet
from goldstick.calibration.memory_budget import default_budget
from goldstick.checkpoint.journal import training_directory
from goldstick.checkpoint.source_files import SourceFiles
from goldstick.core.agreement import require_same
from goldstick.core.processes import process_count, rank, told_by_first
from goldstick.core.progress import quiet
from goldstick.core.ranks import Ranks
from goldstick.core.torch_modes import as_written
from goldstick.errors import RankError, UsageError
from goldstick.jobs.load.importance import importance_files
from goldstick.jobs.load.load import find_device
from goldstick.jobs.plan.plan import Plan
from goldstick.jobs.quantize.by_blocks import prepare
from goldstick.jobs.quantize.run_identity import digest_of, run_identity
from goldstick.jobs.quantize.stream import assist_streaming
from goldstick.jobs.quantize.write import Calibrate, in_memory, train_alongside
from goldstick.report import Report


def agree(ranks: Ranks, plan: Plan, data: CalibrationSet | None) -> None:
    """See to it that all processes of a run are about to do the same, wherever each has its files.

    The files of the source are compared by name and size: each is read through by one of them. Data and importance
    matrices are compared by what they hold.

    Raises:
        UsageError: They are not; the first process says which of them differ, and in what. The others end.
    """
    sizes = [(name, file.stat().st_size) for name, file in plan.source.files_read.items()]
    own = run_identity(plan, data, {}, ranks.device) | {"set of source files": digest_of(sorted(sizes))}
    # What the data hold is compared, not where they lie.
    aside: dict[str, Any] = {"evaluate": True, "calibration": {"dataset"}}
    recipe = json.dumps(plan.recipe.model_dump(mode="json", exclude=aside))
    for number, file in enumerate(importance_files(plan.resolution)):
        recipe = recipe.replace(json.dumps(file), f'"importance matrix {number}"')
        own[f"importance matrix {number}"] = own.pop(f"importance matrix {file}")
    require_same(ranks, own | {"recipe": recipe})


@as_written()
def help_the_first(
    plan: Plan,
    output: str | Path,
    device: str,
    calibrate: Calibrate,
    max_memory: int | None = None,
    saved_as: str = "",
) -> Report:
    """What further processes that torchrun started do, while the first carries out a plan: take part, and wait.

    Where the first has failed, or cannot be reached, they end and say nothing: what is to be said, the first says.
    """
    target = find_device(device)
    try:
        if plan.resolution.trains:
            train_alongside(plan, in_memory(plan, target, calibrate, training_directory(Path(output))), quiet)
        else:
            _take_part(plan, target, calibrate, max_memory, saved_as)
        return Report.from_json(told_by_first(""))
    except RankError as error:
        raise SystemExit(RankError.exit_code) from error


def _take_part(plan: Plan, target: torch.device, calibrate: Calibrate, max_memory: int | None, saved_as: str) -> None:
    """What :func:`goldstick.jobs.quantize.quantize.execute` asks of further ranks, in its order."""
    ranks = Ranks.joined(target)
    budget = default_budget() if max_memory is None else max_memory
    blockwise = prepare(plan, target, calibrate, budget, quiet, ranks, saved_as)
    if blockwise is None and not plan.streams:
        raise idle_ranks()
    agree(ranks, plan, blockwise.data if blockwise else None)
    files = SourceFiles(plan.source.files_read, plan.source.states)
    if ranks.of(False):
        files.hashes(ranks=ranks)
    if not ranks.of(False):
        return  # there is nothing to do
    if blockwise is not None:
        blockwise.assist()
    else:
        assist_streaming(plan, target, ranks)
        ranks.account()
        files.hashes(ranks=ranks)


def refuse_idle_ranks(plan: Plan) -> None:
    """Refuse several processes where all but the first would only wait, before any of them waits for another.

    Args:
        plan: The plan.

    Raises:
        UsageError: There are several, and they have nothing to do together.
    """
    if process_count() == 1 or plan.streams or plan.by_blocks:
        return
    if plan.resolution.trains and plan.resolution.first(Distill) is not None:
        raise idle_ranks("distill, which follows the training, learns in one.")
    if not plan.resolution.trains:
        raise idle_ranks()


def idle_ranks(
    why: str = "the model is in memory as a whole. No stage of this recipe trains, tensors are not rounded one by one, "
    "and the model is not calibrated block by block.",
) -> UsageError:
    """Why a run is refused in several processes; their variables may be left from another launcher."""
    return UsageError(
        f"WORLD_SIZE={process_count()} and RANK={rank()} say that this is one of {process_count()} processes, and this "
        f"run has nothing for them to do: {why} Start one process, or unset RANK and WORLD_SIZE to run alone."
    )
