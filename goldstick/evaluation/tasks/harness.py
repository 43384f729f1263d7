"""Any task of lm-evaluation-harness, as a task among the others: ``lm_eval:NAME``."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from goldstick.core.progress import Progress
from goldstick.errors import DataError, GoldstickError, UsageError
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import Items, uncertainty
from goldstick.evaluation.protocol import Measurable, TaskResult

PREFIX = "lm_eval:"
FOLDER = "lm_eval"
"""Where under the data directory task files of one's own lie."""

_OF_A_TASK = {".yaml", ".yml", ".py", ".json", ".jsonl", ".txt"}


@dataclass(frozen=True, kw_only=True)
class HarnessTask:
    """A task or a group of lm-evaluation-harness, run by the harness itself on this model.

    Args:
        task: its name there, or in a YAML file in the folder ``lm_eval`` of the data directory.
    """

    models: ClassVar[tuple[type[Measurable], ...]] = (LanguageModel,)
    task: str

    @property
    def name(self) -> str:
        """``lm_eval:`` and the task."""
        return PREFIX + self.task

    @property
    def protocol(self) -> str:
        """The harness's version; results add that of the task. Raises UsageError where it is not installed."""
        try:
            return f"lm_eval@{version('lm_eval')}"
        except PackageNotFoundError as error:
            raise UsageError(
                f"{self.name} needs lm_eval, which is not installed: pip install 'goldstick[eval]'"
            ) from error

    def load(self, data: DataSource) -> list[tuple[str, str]]:
        """Return name and SHA-256 of the questions of the task, or of each task of the group."""
        assert self.protocol  # that it is installed
        found = []
        for name, task in self._tasks(self._manager(data)):
            questions = json.dumps(list(task.eval_docs), sort_keys=True, default=repr)
            found.append((name, hashlib.sha256(questions.encode()).hexdigest()))
        return found

    def run(
        self, language_model: LanguageModel, data: DataSource, limit: int | None, progress: Progress | None
    ) -> TaskResult:
        """Score the first ``limit`` questions of each task."""
        protocol = self.protocol
        from lm_eval import simple_evaluate

        from goldstick.evaluation.lm_eval_model import HarnessModel

        advance = None if progress is None else lambda done, total: progress(f"{self.name}: requests", done, total)
        model = HarnessModel(language_model, advance)
        manager = self._manager(data)
        found = simple_evaluate(
            model=model, tasks=[self.task], limit=limit, task_manager=manager, log_samples=True, bootstrap_iters=0
        )
        versions = {name: value for name, value in found["versions"].items() if value is not None}
        n = sum(len(rows) for rows in found["samples"].values())
        if progress is not None:
            progress(self.name, n, n)
        stated = ", ".join(f"{name} version {value}" for name, value in sorted(versions.items()))
        return harness_result(found, f"{protocol}, {stated}" if stated else protocol)

    def files(self, data: DataSource) -> list[Path]:
        """Return the files in the folder of the user's own tasks, any of which this one may be made of."""
        own = _own_folder(data)
        return [] if own is None else [path for path in own.rglob("*") if path.suffix in _OF_A_TASK and path.is_file()]

    def _manager(self, data: DataSource) -> Any:
        from lm_eval.tasks import TaskManager

        own = _own_folder(data)
        return TaskManager(include_path=None if own is None else str(own))

    def _tasks(self, manager: Any) -> list[tuple[str, Any]]:
        if self.task not in manager.all_tasks:
            raise UsageError(
                f"lm-evaluation-harness has no task {self.task!r}, and no file in the folder {FOLDER} of the data "
                "directory names one so"
            )
        try:
            return list(_leaves(manager.load_task_or_group(self.task)))
        except GoldstickError:
            raise
        except Exception as error:  # of datasets, of the hub's client and of the task's own code
            raise DataError(f"{self.name}: cannot be loaded ({type(error).__name__}: {error})") from error


def _own_folder(data: DataSource) -> Path | None:
    own = None if data.data_dir is None else data.data_dir / FOLDER
    return own if own is not None and own.is_dir() else None


def _leaves(loaded: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, task in loaded.items():
        if isinstance(task, Mapping):
            yield from _leaves(task)
        else:
            yield str(name), task


def harness_result(found: Mapping[str, Any], protocol: str) -> TaskResult:
    """Return what ``simple_evaluate`` found as a result with items.

    A metric that is the mean of its questions' values and better when higher is in percent, as everywhere in
    goldstick; all others are what the harness gives. There is an interval where the questions' values give the
    harness's figure: as their mean, or for texts as exp(−Σ log p / Σ w) or −Σ log p / Σ w / log 2. Where there are
    several tasks, names of metrics begin with that of the task.
    """
    several = len(found["results"]) > 1
    metrics: dict[str, float] = {}
    items: dict[str, Items] = {}
    lower: list[str] = []
    for task, row in found["results"].items():
        higher_is_better = (found.get("higher_is_better") or {}).get(task) or {}
        for key, value in row.items():
            metric, _, filtered = key.partition(",")
            if (
                metric.endswith("_stderr")
                or not filtered
                or isinstance(value, bool)
                or not isinstance(value, int | float)
            ):
                continue
            name = " ".join([*([task] if several else []), metric, *([filtered] if filtered != "none" else [])])
            if higher_is_better.get(metric) is False:
                lower.append(name)
            own = _items(_values(found["samples"].get(task, ()), metric, filtered), value, higher_is_better.get(metric))
            metrics[name] = float(value) if own is None else own.metric()
            if own is not None:
                items[name] = own
    n = sum(len({sample["doc_id"] for sample in rows}) for rows in found["samples"].values())
    return TaskResult(protocol=protocol, n=n, metrics=metrics, details={"lower_is_better": lower, **uncertainty(items)})


def _values(samples: Sequence[Mapping[str, Any]], metric: str, filtered: str) -> list[Any]:
    rows = [sample for sample in samples if sample.get("filter", "none") == filtered and metric in sample]
    return [row[metric] for row in sorted(rows, key=lambda row: int(row["doc_id"]))]


def _items(values: Sequence[Any], figure: float, higher_is_better: bool | None) -> Items | None:
    """The items whose metric is the figure, times 100 where it is a score; None where no rule gives it."""
    tried: list[tuple[Items, float]] = []
    if values and all(isinstance(value, int | float) for value in values):
        factor = 100.0 if higher_is_better else 1.0
        tried = [(Items(values=[float(value) for value in values], factor=factor), factor)]
    elif values and all(isinstance(value, list | tuple) and len(value) == 2 for value in values):
        nll, weights = [-float(value[0]) for value in values], [float(value[1]) for value in values]
        tried = [
            (Items(values=nll, weights=weights, exponential=True), 1.0),
            (Items(values=nll, weights=weights, factor=1 / math.log(2.0)), 1.0),
        ]
    for items, factor in tried:
        if math.isclose(items.metric(), factor * figure, rel_tol=1e-9, abs_tol=1e-12):
            return items
    return None
