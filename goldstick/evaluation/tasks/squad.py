"""SQuAD 1.1 (arXiv:1606.05250): answer a question about a paragraph, in words of one's own or by a part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shown
from typing import Any, ClassVar

from goldstick.core.progress import Progress
from goldstick.errors import DataError
from goldstick.evaluation.data import Dataset, DataSource, evenly_spaced, require_text
from goldstick.evaluation.hub import HubDataset
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import squad_items, uncertainty
from goldstick.evaluation.protocol import Measurable, TaskResult
from goldstick.evaluation.span_model import SpanModel

DATASET = Dataset(
    name="squad",
    files=("squad/dev-v1.1.json", "squad/dev*-v1.1.json"),
    hub=(HubDataset(path="rajpurkar/squad", split="validation"),),
)


@dataclass(frozen=True, kw_only=True)
class ReadingQuestion:
    """A question about a paragraph, and the answers people gave."""

    title: str
    context: str
    question: str
    answers: Sequence[str]

    @property
    def prompt(self) -> str:
        """What a causal language model goes on from: that of lm-evaluation-harness's ``squadv2``."""
        return f"Title: {self.title}\n\nBackground: {self.context}\n\nQuestion: {self.question}\n\nAnswer:"


@dataclass(frozen=True, kw_only=True)
class Squad:
    """Exact match and F1 in percent, officially normalised.

    A causal language model's answer is what it generates greedily up to the end of the line; that of an encoder with a
    span head is the likeliest part of the paragraph. Version 1.1 has no unanswerable questions.
    """

    models: ClassVar[tuple[type[Measurable], ...]] = (LanguageModel, SpanModel)
    name: str = "squad"
    protocol: str = "generative@1"
    extractive_protocol: str = "extractive@1"
    max_new_tokens: int = 48
    dataset: Dataset = DATASET

    def load(self, data: DataSource) -> list[ReadingQuestion]:
        """Return the questions of the official JSON file or of the hub's rows."""
        path = data.find(self.dataset)
        if path is None:
            rows = data.rows(self.dataset, ["title", "context", "question", "answers"])
            return [_question(row, row["title"], row["context"], row["answers"]["text"]) for row in rows]
        questions = _official(data.document(path), path)
        if not questions:
            raise DataError(f"{path}: the file holds no questions")
        return questions

    def run(
        self, model: LanguageModel | SpanModel, data: DataSource, limit: int | None, progress: Progress | None
    ) -> TaskResult:
        """Score ``limit`` questions, evenly spaced over the articles."""
        questions = evenly_spaced(self.load(data), limit)
        advance = None if progress is None else lambda done, total: progress(self.name, done, total)
        if isinstance(model, SpanModel):
            protocol = f"{self.extractive_protocol}, windows of {model.window}"
            texts = model.answer([(question.question, question.context) for question in questions], advance)
        else:
            protocol = self.protocol
            prompts = [question.prompt for question in questions]
            texts = model.generate_greedy(prompts, self.max_new_tokens, ["\n"], advance)
        pairs = [(text.strip(), question.answers) for text, question in zip(texts, questions, strict=True)]
        items = squad_items(pairs)
        return TaskResult(
            protocol=protocol,
            n=len(questions),
            metrics={name: item.metric() for name, item in items.items()},
            details={
                "one_answer_only": sum(len(question.answers) == 1 for question in questions),
                **uncertainty(items),
            },
        )


def _official(document: Any, path: Path) -> list[ReadingQuestion]:
    try:
        return [
            _question(question, article["title"], paragraph["context"], [a["text"] for a in question["answers"]])
            for article in document["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not the official SQuAD 1.1 layout ({type(error).__name__}: {str(error)[:200]})"
        ) from error


def _question(row: Mapping[str, Any], title: str, context: str, answers: Sequence[str]) -> ReadingQuestion:
    texts = {"title": title, "context": context, "question": row["question"]}
    require_text(texts, list(texts), f"squad, {shown(row.get('id', title))}")
    if not answers:
        raise DataError(
            f"squad: the question {shown(row['question'])} of {shown(title)} has no answer; SQuAD 1.1 has none "
            "without, and those of version 2.0 are another task"
        )
    if not all(isinstance(answer, str) for answer in answers):
        raise DataError(f"squad: an answer to {shown(row['question'])} is no text")
    return ReadingQuestion(title=title, context=context, question=row["question"], answers=list(answers))
