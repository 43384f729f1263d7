"""BoolQ and SQuAD 1.1 asked and scored as MindSpore Golden Stick does, to set figures beside its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from goldstick.core.progress import Progress
from goldstick.evaluation.data import DataSource, evenly_spaced, require_text
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import Items, uncertainty
from goldstick.evaluation.mindformers_scores import mindformers_exact_match, mindformers_f1
from goldstick.evaluation.protocol import Measurable, TaskResult
from goldstick.evaluation.tasks.boolq import DATASET, read_answer
from goldstick.evaluation.tasks.squad import ReadingQuestion, Squad


@dataclass(frozen=True, kw_only=True)
class GeneratedBoolQ:
    """Accuracy in percent: does what is generated, five tokens, hold the word of the answer anywhere.

    "not" and "know" hold a "no", then, as they do there.
    """

    models: ClassVar[tuple[type[Measurable], ...]] = (LanguageModel,)
    name: str = "boolq/goldenstick"
    protocol: str = "goldenstick@1"
    max_new_tokens: int = 5

    def load(self, data: DataSource) -> list[tuple[str, str]]:
        """Return a prompt and ``yes`` or ``no`` for each validation question."""
        rows = data.rows(DATASET, ["passage", "question"])
        for number, row in enumerate(rows, start=1):
            require_text(row, ["passage", "question"], f"boolq, row {number}")
        return [
            (_boolq_prompt(row), "yes" if read_answer(row, number) else "no")
            for number, row in enumerate(rows, start=1)
        ]

    def run(self, model: LanguageModel, data: DataSource, limit: int | None, progress: Progress | None) -> TaskResult:
        """Score the first ``limit`` questions."""
        questions = self.load(data)[:limit]
        texts = model.generate_greedy(
            [prompt for prompt, _ in questions], self.max_new_tokens, (), _advance(self.name, progress)
        )
        right = [int(answer in text.lower()) for text, (_, answer) in zip(texts, questions, strict=True)]
        answered = sum("yes" in text.lower() or "no" in text.lower() for text in texts)
        items = {"accuracy": Items(values=right)}
        return TaskResult(
            protocol=self.protocol,
            n=len(questions),
            metrics={"accuracy": items["accuracy"].metric()},
            details={"answered": 100.0 * answered / len(questions), **uncertainty(items)},
        )


@dataclass(frozen=True, kw_only=True)
class FirstQuestions:
    """Exact match and F1 in percent as MindFormers counts them, of each paragraph's first question and first answer."""

    models: ClassVar[tuple[type[Measurable], ...]] = (LanguageModel,)
    name: str = "squad/goldenstick"
    protocol: str = "goldenstick@1"
    max_new_tokens: int = 48

    def load(self, data: DataSource) -> list[ReadingQuestion]:
        """Return the first question of each paragraph."""
        first: dict[tuple[str, str], ReadingQuestion] = {}
        for question in Squad().load(data):
            first.setdefault((question.title, question.context), question)
        return list(first.values())

    def run(self, model: LanguageModel, data: DataSource, limit: int | None, progress: Progress | None) -> TaskResult:
        """Score ``limit`` questions, evenly spaced over the articles."""
        questions = evenly_spaced(self.load(data), limit)
        prompts = [
            "Read the passage and answer the question below.\n\n"
            f"### Instruction:\n{question.context}\n\n### Input:\n{question.question}\n\n### Response:"
            for question in questions
        ]
        texts = model.generate_greedy(prompts, self.max_new_tokens, (), _advance(self.name, progress))
        pairs = [
            (text.strip().split("\n")[0], question.answers[0]) for text, question in zip(texts, questions, strict=True)
        ]
        items = {
            "exact_match": Items(values=[mindformers_exact_match(text, answer) for text, answer in pairs]),
            "f1": Items(values=[mindformers_f1(text, answer) for text, answer in pairs]),
        }
        metrics = {name: item.metric() for name, item in items.items()}
        return TaskResult(protocol=self.protocol, n=len(questions), metrics=metrics, details=uncertainty(items))


def _boolq_prompt(row: Mapping[str, Any]) -> str:
    title = f"{row['title']} -- " if "title" in row else ""  # other copies have it in the passage
    return (
        "Please read the following passage and answer the question directly with either 'yes' or 'no' without analysis "
        f"process.\n\n ### Passage:\n{title}{row['passage']}\n### Question:\n{row['question']}\n### Answer:"
    )


def _advance(name: str, progress: Progress | None) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(name, done, total)
