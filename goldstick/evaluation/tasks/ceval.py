"""C-Eval (arXiv:2305.08322): Chinese examination questions with four choices, from 52 subjects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from goldstick.errors import DataError
from goldstick.evaluation.data import Dataset, DataSource, evenly_spaced
from goldstick.evaluation.hub import HubDataset
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import Items, uncertainty
from goldstick.evaluation.protocol import Progress, TaskResult
from goldstick.evaluation.tasks.ceval_subjects import SUBJECTS, Subject
from goldstick.evaluation.tasks.choice import Question, choose

LETTERS = ("A", "B", "C", "D")

DATASET = Dataset(
    name="ceval",
    files=("ceval/val.jsonl",),
    hub=tuple(
        HubDataset(path="ceval/ceval-exam", configuration=subject, split="val", configuration_field="subject")
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
    """Accuracy in percent: the likeliest letter, without examples; as lm-eval's ``ceval-valid``."""

    name: str = "ceval"
    protocol: str = "loglik@1"
    dataset: Dataset = DATASET

    def load(self, data: DataSource) -> list[SubjectQuestion]:
        """Return the validation questions."""
        rows = data.rows(self.dataset, ["subject", "question", "answer", *LETTERS])
        return [_subject_question(row, number) for number, row in enumerate(rows, start=1)]

    def run(
        self, language_model: LanguageModel, data: DataSource, limit: int | None, progress: Progress | None
    ) -> TaskResult:
        """Score ``limit`` questions, evenly spaced over the subjects."""
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
                    category: {"accuracy": 100.0 * sum(own) / len(own), "n": len(own)}
                    for category, own in sorted(by_category.items())
                },
                **uncertainty({"accuracy": items}),
            },
        )


def _subject_question(row: Mapping[str, Any], number: int) -> SubjectQuestion:
    """Return the prompt: the subject's name in Chinese, the question, the four choices and 答案 (answer)."""
    subject = SUBJECTS.get(row["subject"])
    if subject is None and "subject_name" in row and "category" in row:  # other data in C-Eval's schema
        subject = Subject(str(row["subject_name"]), str(row["category"]))
    if subject is None:
        raise DataError(f"ceval, row {number}: {row['subject']!r} is none of C-Eval's 52 subjects, and has no name")
    if row["answer"] not in LETTERS:
        raise DataError(f"ceval, row {number}: the answer must be a letter from A to D, not {row['answer']!r}")
    choices = "".join(f"{letter}. {row[letter]}\n" for letter in LETTERS)
    description = f"以下是中国关于{subject.chinese}的单项选择题，请选出其中的正确答案。\n\n"
    question = Question(
        context=f"{description}{str(row['question']).strip()}\n{choices}答案：",
        choices=[f" {letter}" for letter in LETTERS],
        answer=LETTERS.index(row["answer"]),
    )
    return SubjectQuestion(question=question, category=subject.category)
