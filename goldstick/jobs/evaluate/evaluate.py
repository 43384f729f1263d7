"""Evaluating checkpoints: one, from the cache where its results are known, or one beside what it was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from goldstick.calibration.float32_products import multiplying_in_float32
from goldstick.checkpoint.gguf.directory import checkpoint_directory
from goldstick.core.agreement import require_same, sizes_of
from goldstick.core.progress import Progress
from goldstick.core.ranks import Ranks
from goldstick.errors import UsageError
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.evaluate import Evaluation
from goldstick.evaluation.evaluate import evaluate as run_tasks
from goldstick.evaluation.examples import COUNT
from goldstick.evaluation.find_tasks import find_tasks
from goldstick.evaluation.protocol import Task
from goldstick.jobs.evaluate.cache import evaluate_with_cache
from goldstick.jobs.evaluate.divergence import compare_predictions
from goldstick.jobs.evaluate.examples import compare_examples
from goldstick.jobs.evaluate.speed import compare_speed
from goldstick.jobs.load.runnable import load_with_inputs, with_inputs


def evaluate_directory(
    directory: Path,
    tasks: Sequence[str | Task],
    data_dir: Path | None,
    limit: int | None,
    progress: Progress,
    cache: Path | None = None,
    ranks: Ranks | None = None,
) -> Evaluation:
    """Run tasks on a checkpoint directory or a GGUF file.

    Args:
        directory: What :func:`find_model` found.
        tasks: Their names, or tasks themselves.
        data_dir: Where local data lie.
        limit: At most so many items of each task.
        progress: Called with (description, done, total).
        cache: Where results are kept and looked up; nowhere where ``None``. Of several ranks the first has it.
        ranks: Who does it together, batch by batch; all of them get the results.

    Raises:
        UsageError: The ranks are not about to do the same.
    """
    data, ranks = DataSource(data_dir), ranks or Ranks()

    with checkpoint_directory(directory) as found:

        def measure(chosen: Sequence[Task]) -> Evaluation:
            model = load_with_inputs(found)
            model.ranks = ranks
            with torch.no_grad(), multiplying_in_float32(model.model):
                return run_tasks(model, chosen, data, limit, progress)

        if not ranks.alone:
            names = [Path(name).name for name in find_tasks(tasks)]
            require_same(ranks, {"model": sizes_of(found), "list of tasks": names, "limit": limit})
        if not ranks.of(cache is not None):
            return measure([*find_tasks(tasks).values()])
        return evaluate_with_cache(found, tasks, data, limit, cache, measure, progress, ranks)


def evaluate_loaded(
    model: nn.Module,
    tasks: Sequence[str | Task],
    tokenizer: str | Path | None,
    data_dir: Path | None,
    limit: int | None,
    progress: Progress,
) -> Evaluation:
    """Run tasks on a model in memory.

    Args:
        model: A transformers model.
        tasks: Their names, or tasks themselves.
        tokenizer: Directory of its tokenizer or image processor; where it was loaded from where ``None``.
        data_dir, limit, progress: As above.

    Raises:
        UsageError: Nobody says where its tokenizer lies, or it is a model of another kind.
    """
    origin = tokenizer or getattr(model, "name_or_path", "")
    if not origin:
        raise UsageError("A loaded model needs its tokenizer: evaluate(model, tasks, tokenizer=DIRECTORY).")
    return run_tasks(with_inputs(model, Path(origin)), tasks, data_dir, limit, progress)


def before_and_after(
    source: Path,
    tasks: Sequence[str | Task],
    directory: Path | None,
    limit: int | None,
    progress: Progress,
    cache: Path | None,
    asked: int | Sequence[str] = COUNT,
) -> Callable[[Path], Mapping[str, Any]]:
    """Measure a float model at once, and what becomes of it, beside it, when that is there.

    Args:
        source, tasks, directory, limit, progress, cache: As above.
        asked: How many items of each task are shown with both answers, or prompts.

    Returns:
        From the compressed checkpoint to the results ``before`` and ``after``, the ``divergence`` of what both
        predict, ``examples``, and the ``speed`` of both where they write.
    """
    find_tasks(tasks)
    before = evaluate_directory(source, tasks, directory, limit, progress, cache)

    def measure(checkpoint: Path) -> Mapping[str, Any]:
        after = evaluate_directory(checkpoint, tasks, directory, limit, progress, cache)
        apart = compare_predictions(source, checkpoint, tasks, data_dir=directory, limit=limit, progress=progress)
        found: dict[str, Any] = {"before": before.to_dict(), "after": after.to_dict(), "divergence": apart}
        shown = compare_examples(source, checkpoint, tasks, asked, data_dir=directory, limit=limit, progress=progress)
        found |= {"examples": shown} if shown else {}
        speed = compare_speed(source, checkpoint)
        return found | ({"speed": speed} if speed else {})

    return measure
