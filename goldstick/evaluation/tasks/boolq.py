"""BoolQ (arXiv:1905.10044): a passage, a question, yes or no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any, ClassVar

from goldstick.core.progress import Progress
from goldstick.errors import DataError
from goldstick.evaluation.data import Dataset, DataSource, require_text
from goldstick.evaluation.hub import HubDataset
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import Items, uncertainty
from goldstick.evaluation.protocol import Measurable, TaskResult
from goldstick.evaluation.tasks.choice import Question, choose

CHOICES = (" no", " yes")
_FIELDS = ("passage", "question")

DATASET = Dataset(
    name="boolq",
    files=("boolq/val.jsonl",),
    hub=(HubDataset(path="aps/super_glue", configuration="boolq", split="validation"),),
)


@dataclass(frozen=True, kw_only=True)
class BoolQ:
    """Accuracy in percent: is " no" or " yes" likelier; lm-evaluation-harness's ``boolq`` version 2."""

    models: ClassVar[tuple[type[Measurable], ...]] = (LanguageModel,)
    name: str = "boolq"
    protocol: str = "loglik@1"
    dataset: Dataset = DATASET

    def load(self, data: DataSource) -> list[Question]:
        """Return the validation questions; the answer is in ``label`` or ``answer``, a boolean, 0 or 1."""
        rows = data.rows(self.dataset, _FIELDS)
        for number, row in enumerate(rows, start=1):
            require_text(row, _FIELDS, f"boolq, row {number}")
        return [
            Question(
                context=f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:",
                choices=CHOICES,
                answer=read_answer(row, number),
            )
            for number, row in enumerate(rows, start=1)
        ]

    def run(
        self, language_model: LanguageModel, data: DataSource, limit: int | None, progress: Progress | None
    ) -> TaskResult:
        """Score the first ``limit`` questions."""
        questions = self.load(data)[:limit]
        chosen = choose(language_model, questions, self.name, progress)
        correct = [int(index == question.answer) for index, question in zip(chosen, questions, strict=True)]
        items = Items(values=correct)
        return TaskResult(
            protocol=self.protocol,
            n=len(questions),
            metrics={"accuracy": items.metric()},
            details={
                "answered_yes": 100.0 * sum(chosen) / len(chosen),
                "majority": 100.0 * max(_share(questions, 0), _share(questions, 1)),
                **uncertainty({"accuracy": items}),
            },
        )


def read_answer(row: Mapping[str, Any], number: int) -> int:
    """Return 1 for yes and 0 for no, of ``label`` or ``answer``; DataError, naming the row, for anything else."""
    value = row.get("label", row.get("answer"))
    if value not in (0, 1):  # booleans are equal to 0 and 1
        raise DataError(f"boolq, row {number}: label (or answer) must be true, false, 0 or 1, not {shown(value)}")
    return int(value)


def _share(questions: list[Question], answer: int) -> float:
    return sum(question.answer == answer for question in questions) / len(questions)
