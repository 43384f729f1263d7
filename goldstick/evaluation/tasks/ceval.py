"""C-Eval (arXiv:2305.08322): Chinese examination questions with four choices, from 52 subjects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any, ClassVar

from goldstick.core.progress import Progress
from goldstick.errors import DataError
from goldstick.evaluation.data import Dataset, DataSource, evenly_spaced, require_text
from goldstick.evaluation.hub import HubDataset
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import Items, uncertainty
from goldstick.evaluation.protocol import Measurable, TaskResult
from goldstick.evaluation.tasks.ceval_subjects import SUBJECTS, Subject
from goldstick.evaluation.tasks.choice import Question, choose

LETTERS = ("A", "B", "C", "D")
_FIELDS = ("subject", "question", "answer", *LETTERS)

DATASET = Dataset(
    name="ceval",
    files=("ceval/val.jsonl",),
    hub=tuple(
        HubDataset(path="ceval/ceval-exam", configuration=subject, split="val", configuration_field="subject")
        for subject in SUBJECTS
    ),
)
EXAMPLES = Dataset(
    name="ceval's examples",
    files=("ceval/dev.jsonl",),
    hub=tuple(
        HubDataset(path="ceval/ceval-exam", configuration=subject, split="dev", configuration_field="subject")
        for subject in SUBJECTS
    ),
)


@dataclass(frozen=True, kw_only=True)
class SubjectQuestion:
    """A question with its subject's category."""

    question: Question
    category: str


@dataclass(frozen=True, kw_only=True)
class CEval:
    """Accuracy in percent: the likeliest letter; as lm-eval's ``ceval-valid``.

    Args:
        name: the task's name.
        protocol: the procedure's.
        shots: how many of the subject's examples, the first ones, stand before each question with their answers.
        dataset: where the questions are.
        examples: where the examples are.
    """

    models: ClassVar[tuple[type[Measurable], ...]] = (LanguageModel,)
    name: str = "ceval"
    protocol: str = "loglik@1"
    shots: int = 0
    dataset: Dataset = DATASET
    examples: Dataset = EXAMPLES

    def load(self, data: DataSource) -> list[SubjectQuestion]:
        """Return the validation questions with what stands before them."""
        rows = data.rows(self.dataset, _FIELDS)
        examples = self._examples(data)
        found = []
        for number, row in enumerate(rows, start=1):
            require_text(row, ("subject", "question"), f"ceval, row {number}")
            own = examples[row["subject"]][: self.shots]
            if len(own) < self.shots:
                raise DataError(
                    f"ceval: {shown(row['subject'])} has {len(own)} examples, and {self.shots} are asked for"
                )
            found.append(_subject_question(row, number, own))
        return found

    def _examples(self, data: DataSource) -> Mapping[str, list[str]]:
        """The examples of each subject as text, the answer behind each."""
        found: dict[str, list[str]] = defaultdict(list)
        rows = data.rows(self.examples, _FIELDS) if self.shots else []
        for number, row in enumerate(rows, start=1):
            require_text(row, ("subject", "question"), f"ceval's examples, row {number}")
            _require_letter(row, f"ceval's examples, row {number}")
            found[row["subject"]].append(f"{_asked(row)} {row['answer']}\n\n")
        return found

    def run(
        self, language_model: LanguageModel, data: DataSource, limit: int | None, progress: Progress | None
    ) -> TaskResult:
        """Score ``limit`` questions, evenly spaced over the subjects; ``details.categories`` tells them apart."""
        questions = evenly_spaced(self.load(data), limit)
        chosen = choose(language_model, [question.question for question in questions], self.name, progress)
        correct: list[int] = []
        by_category: dict[str, list[int]] = defaultdict(list)
        for index, question in zip(chosen, questions, strict=True):
            correct.append(int(index == question.question.answer))
            by_category[question.category].append(correct[-1])
        items = Items(values=correct)
        return TaskResult(
            protocol=self.protocol,
            n=len(questions),
            metrics={"accuracy": items.metric()},
            details={
                "categories": {
                    category: {
                        "accuracy": Items(values=own).metric(),
                        "interval_95": Items(values=own).interval(),
                        "n": len(own),
                    }
                    for category, own in sorted(by_category.items())
                },
                **uncertainty({"accuracy": items}),
            },
        )


def _subject_question(row: Mapping[str, Any], number: int, examples: Sequence[str]) -> SubjectQuestion:
    """Return the prompt: the subject's name in Chinese, the examples, the question without its answer."""
    subject = SUBJECTS.get(row["subject"])
    if subject is None and "subject_name" in row and "category" in row:  # other data in C-Eval's schema
        subject = Subject(str(row["subject_name"]), str(row["category"]))
    if subject is None:
        raise DataError(
            f"ceval, row {number}: {shown(row['subject'])} is none of C-Eval's 52 subjects, and has no name"
        )
    _require_letter(row, f"ceval, row {number}")
    description = f"以下是中国关于{subject.chinese}的单项选择题，请选出其中的正确答案。\n\n"
    question = Question(
        context=f"{description}{''.join(examples)}{_asked(row)}",
        choices=[f" {letter}" for letter in LETTERS],
        answer=LETTERS.index(row["answer"]),
    )
    return SubjectQuestion(question=question, category=subject.category)


def _asked(row: Mapping[str, Any]) -> str:
    """The question, the four choices and 答案 (answer)."""
    choices = "".join(f"{letter}. {row[letter]}\n" for letter in LETTERS)
    return f"{str(row['question']).strip()}\n{choices}答案："


def _require_letter(row: Mapping[str, Any], where: str) -> None:
    if row["answer"] not in LETTERS:
        raise DataError(f"{where}: the answer must be a letter from A to D, not {shown(row['answer'])}")
