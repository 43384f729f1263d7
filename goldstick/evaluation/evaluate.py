"""Running tasks on a model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goldstick.core.progress import Progress
from goldstick.errors import UsageError
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.protocol import Measurable, Task, TaskResult
from goldstick.evaluation.tasks import TASKS
from goldstick.evaluation.tasks.harness import PREFIX, HarnessTask


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The results of some tasks on one model.

    Args:
        results: each task's result, by name, in the order they ran.
        tokenizer: the tokenizer's SHA-256; perplexities compare only where it is the same.
    """

    results: Mapping[str, TaskResult]
    tokenizer: str

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"tasks": {name: {"protocol", "n", "metrics", "tokenizer", "details"}}}``, plain data."""
        return {
            "tasks": {
                name: {
                    "protocol": result.protocol,
                    "n": result.n,
                    "metrics": dict(result.metrics),
                    "tokenizer": self.tokenizer,
                    "details": dict(result.details),
                }
                for name, result in self.results.items()
            }
        }


def evaluate(
    model: Measurable,
    tasks: Sequence[str],
    data_dir: Path | str | DataSource | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Run each of ``tasks`` on ``model``; all their data is read before the first begins.

    Args:
        model: the model with what makes its inputs: a `LanguageModel`, a `SpanModel` or an `ImageClassifier`.
        tasks: names from `goldstick.evaluation.tasks.TASKS`, or ``lm_eval:`` and a task of lm-evaluation-harness.
        data_dir: the directory with local copies of the data, or None for the hub; or a DataSource.
        limit: the most items per task (windows, documents, questions), or None for each task's own number.
        progress: called as ``progress(task, done, total)``.

    Raises UsageError for an unknown name, no task, a repeated task, a task that cannot measure such a model, or a
    limit below 1; DataError for data that is missing, malformed or too short; QuantizationError where the model
    computes NaN.
    """
    chosen = find_tasks(tasks)
    if limit is not None and limit < 1:
        raise UsageError(f"limit={limit} leaves nothing to evaluate; it must be 1 or more")
    for task in chosen.values():
        if not isinstance(model, task.models):
            wanted = " or ".join(str(kind.kind) for kind in task.models)
            raise UsageError(f"the task {task.name!r} measures {wanted}; this is {model.kind}")
    data = data_dir if isinstance(data_dir, DataSource) else DataSource(data_dir)
    for task in chosen.values():
        task.load(data)
    results = {name: task.run(model, data, limit, progress) for name, task in chosen.items()}
    return Evaluation(results=results, tokenizer=model.tokenizer_hash)


def find_tasks(names: Sequence[str]) -> dict[str, Task]:
    """Return the registered tasks of those names, or raise UsageError naming the nearest candidate."""
    if isinstance(names, str):
        raise UsageError(f"tasks must be a list of names, not the string {names!r}")
    if not names:
        raise UsageError(f"no task to evaluate; there are {', '.join(TASKS)}")
    found: dict[str, Task] = {}
    for name in names:
        if name in found:
            raise UsageError(f"the task {name!r} is asked for twice")
        if name.startswith(PREFIX) and name != PREFIX:
            found[name] = HarnessTask(task=name.removeprefix(PREFIX))
            continue
        if name not in TASKS:
            near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            known = f"{', '.join(TASKS)}, and {PREFIX}TASK for lm-evaluation-harness's"
            raise UsageError(f"there is no task {name!r}; {hint}The tasks are {known}")
        found[name] = TASKS[name]
    return found
