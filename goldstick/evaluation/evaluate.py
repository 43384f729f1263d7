"""Running tasks on a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goldstick.core.progress import Progress
from goldstick.errors import GoldstickError, UsageError
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.find_tasks import find_tasks
from goldstick.evaluation.plain_result import plain_result
from goldstick.evaluation.protocol import Measurable, Task, TaskResult
from goldstick.evaluation.task_module import failure, is_failure


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
    tasks: Sequence[str | Task],
    data_dir: Path | str | DataSource | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Run each of ``tasks`` on ``model``; all their data is read before the first begins.

    Args:
        model: the model with what makes its inputs: a `LanguageModel`, a `SpanModel` or an `ImageClassifier`.
        tasks: names, such as ``wikitext2``, ``lm_eval:TASK`` or ``text:FILE``, and tasks of one's own, as
            `goldstick.evaluation.find_tasks.find_tasks` reads them.
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
        _load(task, data)
    results = {name: _run(task, model, data, limit, progress) for name, task in chosen.items()}
    return Evaluation(results=results, tokenizer=model.tokenizer_hash)


def _load(task: Task, data: DataSource) -> None:
    with _of_the_user(task, "load"):
        task.load(data)


def _run(task: Task, model: Measurable, data: DataSource, limit: int | None, progress: Progress | None) -> TaskResult:
    with _of_the_user(task, "run"):
        result = task.run(model, data, limit, progress)
    return plain_result(task.name, result)


@contextmanager
def _of_the_user(task: Task, method: str) -> Iterator[None]:
    """Say which task it was where code that is not goldstick's fails."""
    module = sys.modules.get(type(task).__module__)
    try:
        yield
    except GoldstickError:
        raise
    except (Exception, SystemExit) as error:
        file = getattr(module, "__file__", None)
        path = Path(file) if file else None
        if module is None or module.__name__.partition(".")[0] == "goldstick" or not is_failure(error, path):
            raise
        where = f" of {file}" if file else ""
        what = failure(error, path)
        raise UsageError(f"the task {task.name!r}{where} fails in {method}{what}; mend it there") from error
