"""Two checkpoints on the same texts: what they predict, compared token by token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from goldstick.calibration.float32_products import multiplying_in_float32
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.divergence import divergence, text_tasks
from goldstick.evaluation.protocol import Task
from goldstick.jobs.load.runnable import load_language_model


def compare_predictions(
    baseline: Path,
    model: Path,
    tasks: Sequence[str | Task],
    *,
    data_dir: Path | None = None,
    limit: int | None = None,
    progress: Progress = quiet,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """How far a model's predictions are from those of the model it was made from, on the texts of tasks.

    Args:
        baseline: The checkpoint directory of the model that counts as right.
        model: The other's. Both are in memory, unless no task is on running text.
        tasks: Tasks or their names; those on anything but running text are passed over.
        data_dir: Where local data lie.
        limit: At most so many documents of each.
        progress: Told what is done.
        ranks: Who does it together, batch by batch.

    Returns:
        Task → mean ``token_kl`` in nats and ``top1_agreement`` in percent, with intervals; see
        :func:`goldstick.evaluation.divergence.divergence`.

    Raises:
        UsageError: There is no such task, or the models do not share a tokenizer.
        DataError: The data of a task are neither local nor on the hub.
    """
    if not text_tasks(tasks):
        return {}
    first, second = (load_language_model(directory) for directory in (baseline, model))
    first.ranks = ranks or Ranks()
    with multiplying_in_float32(first.model, second.model):
        return divergence(first, second, tasks, DataSource(data_dir), limit, progress)
