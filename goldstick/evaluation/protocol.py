"""What a task is, and what it returns: the only contract between `evaluate` and the tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from goldstick.core.progress import Progress as Progress
from goldstick.errors import UsageError

if TYPE_CHECKING:
    from goldstick.evaluation.data import DataSource
    from goldstick.evaluation.metrics import Items


class Measurable(Protocol):
    """A model as tasks see it: a `LanguageModel`, a `SpanModel` or an `ImageClassifier`."""

    kind: ClassVar[str]

    @property
    def tokenizer_hash(self) -> str:
        """SHA-256 of what makes an input of a text or an image."""


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The outcome of one task.

    Args:
        protocol: the versioned name of the procedure actually followed, such as ``gptq@2048``. Two results
            compare only where their protocols are equal.
        n: the number of items scored (windows, documents, questions).
        metrics: each metric's value; perplexity and bits per byte as they are, every score in percent.
        details: plain data beside the metrics: ``standard_error`` and ``interval_95`` by metric, ``items``
            (see `goldstick.evaluation.metrics.Items`) so that two runs can be compared item by item, and what
            is particular to the task.
    """

    protocol: str
    n: int
    metrics: Mapping[str, float]
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_items(
        cls, protocol: str, items: Mapping[str, Items], *, lower_is_better: Sequence[str] = (), **details: Any
    ) -> TaskResult:
        """The result that each metric's items make, with standard errors and intervals.

        Args:
            protocol: As above.
            items: What single items gave, by metric; all of the same number of items.
            lower_is_better: Metrics of which less is better, beside perplexities and bits per byte.
            details: What is particular to the task.

        Raises:
            UsageError: Metrics have other numbers of items, or ``lower_is_better`` names none of them.
        """
        from goldstick.evaluation.metrics import uncertainty

        numbers = {name: len(one.values) for name, one in items.items()}
        if len({*numbers.values()}) > 1:
            raise UsageError(f"{protocol}: all metrics are of the same items, and not of as many as these: {numbers}.")
        if unknown := [name for name in lower_is_better if name not in items]:
            raise UsageError(
                f"{protocol}: lower_is_better names {unknown[0]!r}, and the metrics are {', '.join(map(str, items))}."
            )
        return cls(
            protocol=protocol,
            n=max((len(one.values) for one in items.values()), default=0),
            metrics={name: one.metric() for name, one in items.items()},
            details={
                **details,
                **({"lower_is_better": list(lower_is_better)} if lower_is_better else {}),
                **uncertainty(items),
            },
        )


class Task(Protocol):
    """A data set, a prompt and a metric under a versioned protocol; a frozen dataclass without state.

    Attributes:
        models: the classes of models it can measure.
    """

    models: ClassVar[tuple[type[Measurable], ...]]

    @property
    def name(self) -> str:
        """The name in the registry."""

    @property
    def protocol(self) -> str:
        """The versioned name of the procedure; changed whenever the numbers could change."""

    def load(self, data: DataSource) -> Sequence[Any]:
        """Return what `run` will read, so that missing data is known before any task has begun."""

    def run(self, model: Any, data: DataSource, limit: int | None, progress: Progress | None, /) -> TaskResult:
        """Score ``model``, one of `models`, on at most ``limit`` items."""


def why_no_task(found: Any) -> str | None:
    """What an object lacks to be a task, in words; None where it is one."""
    if isinstance(found, type):
        return f"{found.__name__} is a class; give an object of it, {found.__name__}(…)"
    if not isinstance(getattr(found, "name", None), str) or not found.name:
        return "it has no text 'name'"
    if not callable(getattr(found, "run", None)):
        return "it has no method 'run(model, data, limit, progress)'"
    if not callable(getattr(found, "load", None)):
        return "it has no method 'load(data)'"
    if not isinstance(getattr(found, "protocol", None), str):
        return "it has no text 'protocol', such as \"mine@1\""
    kinds = getattr(found, "models", None)
    if not isinstance(kinds, tuple) or not all(isinstance(kind, type) and hasattr(kind, "kind") for kind in kinds):
        return "its 'models' is no tuple of what it measures, such as (LanguageModel,)"
    return None
