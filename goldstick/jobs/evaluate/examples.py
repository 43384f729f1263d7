"""Two checkpoints' answers to the same few items, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from goldstick.calibration.float32_products import multiplying_in_float32
from goldstick.core.progress import Progress, quiet
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.examples import COUNT, Example, examples, side_by_side
from goldstick.evaluation.protocol import Task
from goldstick.jobs.load.runnable import load_with_inputs


def compare_examples(
    baseline: Path,
    model: Path,
    tasks: Sequence[str | Task],
    asked: int | Sequence[str] = COUNT,
    *,
    data_dir: Path | None = None,
    limit: int | None = None,
    progress: Progress = quiet,
) -> list[dict[str, Any]]:
    """What two models answer to a few items of each task, or make of prompts; one model is in memory at a time.

    Args:
        baseline: The checkpoint directory of the model before.
        model: That of the model after.
        tasks: Tasks or their names.
        asked: How many items of each task, or the prompts.
        data_dir: Where local data lie.
        limit: The most items that the tasks measure.
        progress: Told what is done.

    Returns:
        What :func:`goldstick.evaluation.examples.side_by_side` says.

    Raises:
        UsageError: There are prompts, and the models do not write.
        DataError: The data of a task are neither local nor on the hub.
    """
    if not asked:
        return []

    def answers(directory: Path, number: int) -> list[Example]:
        progress("examples", number, 2)
        loaded = load_with_inputs(directory)
        with torch.no_grad(), multiplying_in_float32(loaded.model):
            return examples(loaded, tasks, DataSource(data_dir), asked, limit)

    found = side_by_side(answers(baseline, 0), answers(model, 1))
    progress("examples", 2, 2)
    return found
