"""Questions of one's own, answered in words: ``qa:FILE.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shown
from typing import ClassVar

from goldstick.core.progress import Progress
from goldstick.errors import DataError
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import squad_items
from goldstick.evaluation.protocol import Measurable, TaskResult
from goldstick.evaluation.span_model import SpanModel
from goldstick.evaluation.tasks.own_rows import OwnRow, own_rows, stamped


@dataclass(frozen=True, kw_only=True)
class OpenQuestion:
    """A prompt, the answers that are right, and what a span model reads instead of the prompt.

    Args:
        prompt: what a causal language model goes on from.
        answers: the right answers.
        place: where the question stands, for messages.
        question, context: the same for a span model, None where the row says it otherwise.
    """

    prompt: str
    answers: Sequence[str]
    place: str
    question: str | None = None
    context: str | None = None


@dataclass(frozen=True, kw_only=True)
class QuestionFile:
    """Exact match and F1 in percent, normalised as SQuAD's script does (arXiv:1606.05250), the best of the answers.

    A causal language model's answer is what it writes greedily up to the end of the line; that of an encoder with a
    span head is the likeliest part of the context.

    Args:
        path: JSON lines of ``question`` (and ``context``) or ``prompt``, and ``answer`` or ``answers``.
        max_new_tokens: tokens of an answer at most.
    """

    models: ClassVar[tuple[type[Measurable], ...]] = (LanguageModel, SpanModel)
    path: Path
    max_new_tokens: int = 48

    @property
    def name(self) -> str:
        """``qa:`` and the path."""
        return f"qa:{self.path}"

    @property
    def protocol(self) -> str:
        """``generative@1`` and the tokens of an answer; of a span model, the result's says ``extractive@1``."""
        return f"generative@1, {self.max_new_tokens} tokens"

    def load(self, data: DataSource) -> list[OpenQuestion]:
        """Return the questions. Raises DataError, naming line and field, where a row is none."""
        return [_question(row) for row in own_rows(data, self.path, self.name)]

    def run(
        self, model: LanguageModel | SpanModel, data: DataSource, limit: int | None, progress: Progress | None
    ) -> TaskResult:
        """Score the first ``limit`` questions."""
        questions = self.load(data)[:limit]
        advance = None if progress is None else lambda done, total: progress(self.name, done, total)
        if isinstance(model, SpanModel):
            protocol = f"extractive@1, windows of {model.window}"
            texts = model.answer([_read(question) for question in questions], advance)
        else:
            protocol = self.protocol
            prompts = [question.prompt for question in questions]
            texts = model.generate_greedy(prompts, self.max_new_tokens, ["\n"], advance)
        pairs = [(text.strip(), question.answers) for text, question in zip(texts, questions, strict=True)]
        items = squad_items(pairs)
        return TaskResult.from_items(stamped(protocol, self.path), items)


def _question(row: OwnRow) -> OpenQuestion:
    whole = "prompt" in row.fields
    return OpenQuestion(
        prompt=row.prompt(),
        answers=_answers(row),
        place=row.place,
        question=None if whole else row.text("question"),
        context=None if whole or row.fields.get("context") is None else row.text("context"),
    )


def _answers(row: OwnRow) -> list[str]:
    if "answers" not in row.fields:
        return [row.text("answer")]
    if "answer" in row.fields:
        raise DataError(f"{row.place}: give answer or answers, not both")
    answers = row.fields["answers"]
    if not isinstance(answers, list) or not answers:
        raise DataError(f"{row.place}: answers must be a list of one text or more, not {shown(answers)}")
    for number, answer in enumerate(answers, start=1):
        if not isinstance(answer, str) or not answer.strip():
            raise DataError(f"{row.place}: answers, number {number}, must be text, not {shown(answer)}")
    return answers


def _read(question: OpenQuestion) -> tuple[str, str]:
    if question.question is None or question.context is None:
        raise DataError(
            f"{question.place}: an encoder with a span head answers by a part of the context; give question and context"
        )
    return question.question, question.context
