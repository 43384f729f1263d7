"""Questions of one's own with answers to choose from: ``choice:FILE.jsonl``."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shown
from typing import ClassVar

from goldstick.core.progress import Progress
from goldstick.errors import DataError
from goldstick.evaluation.data import DataSource
from goldstick.evaluation.language_model import LanguageModel
from goldstick.evaluation.metrics import Items
from goldstick.evaluation.protocol import Measurable, TaskResult
from goldstick.evaluation.tasks.choice import Question, choice_scores
from goldstick.evaluation.tasks.own_rows import OwnRow, own_rows, stamped


@dataclass(frozen=True, kw_only=True)
class ChoiceFile:
    """Accuracy in percent: is the right choice the likeliest continuation, the first on a tie.

    ``accuracy`` compares log p(choice | prompt), summed over tokens; ``accuracy_normalized`` the same divided by the
    choice's characters, so that a long choice is no disadvantage; they are lm-evaluation-harness's ``acc`` and
    ``acc_norm``.

    Args:
        path: JSON lines of ``question`` (and ``context``) or ``prompt``, ``choices`` and ``answer``.
    """

    models: ClassVar[tuple[type[Measurable], ...]] = (LanguageModel,)
    path: Path
    protocol: str = "loglik@1"

    @property
    def name(self) -> str:
        """``choice:`` and the path."""
        return f"choice:{self.path}"

    def load(self, data: DataSource) -> list[Question]:
        """Return the questions. Raises DataError, naming line and field, where a row is none."""
        return [_question(row) for row in own_rows(data, self.path, self.name)]

    def run(
        self, language_model: LanguageModel, data: DataSource, limit: int | None, progress: Progress | None
    ) -> TaskResult:
        """Score the first ``limit`` questions."""
        questions = self.load(data)[:limit]
        scores = choice_scores(language_model, questions, self.name, progress)
        normalized = [
            [score / len(choice.strip()) for score, choice in zip(own, question.choices, strict=True)]
            for own, question in zip(scores, questions, strict=True)
        ]
        return TaskResult.from_items(
            stamped(self.protocol, self.path),
            {"accuracy": _right(scores, questions), "accuracy_normalized": _right(normalized, questions)},
            chance=100.0 * sum(1 / len(question.choices) for question in questions) / len(questions),
        )


def _right(scores: Sequence[Sequence[float]], questions: Sequence[Question]) -> Items:
    chosen = [own.index(max(own)) for own in scores]
    return Items(values=[int(index == question.answer) for index, question in zip(chosen, questions, strict=True)])


def _question(row: OwnRow) -> Question:
    prompt = row.prompt()
    choices = row.fields.get("choices")
    if "choices" not in row.fields:
        row.text("choices")  # the message for a field that is missing
    if not isinstance(choices, list) or len(choices) < 2:
        raise DataError(f"{row.place}: choices must be a list of two texts or more, not {shown(choices)}")
    for number, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice.strip():
            raise DataError(f"{row.place}: choices, number {number}, must be text, not {shown(choice)}")
    # A prompt of one's own is gone on from as it is written; a made one ends in a word.
    texts = (
        choices if "prompt" in row.fields else [choice if choice[0].isspace() else f" {choice}" for choice in choices]
    )
    for number, text in enumerate(texts):
        if text in texts[:number]:
            raise DataError(f"{row.place}: choices holds {shown(choices[number])} twice")
    return Question(context=prompt, choices=tuple(texts), answer=_answer(row, choices), place=row.place)


def _answer(row: OwnRow, choices: Sequence[str]) -> int:
    """The number of the right choice: ``answer`` is that number from 0, the choice itself, or its letter."""
    if "answer" not in row.fields:
        row.text("answer")
    answer = row.fields["answer"]
    letters = string.ascii_uppercase[: len(choices)]
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    if isinstance(answer, str) and answer in choices:
        return choices.index(answer)
    if isinstance(answer, str) and len(answer) == 1 and answer in letters:
        return letters.index(answer)
    raise DataError(
        f"{row.place}: answer must be a number from 0 to {len(choices) - 1}, one of the choices, or a letter from A to "
        f"{letters[-1]}, not {shown(answer)}"
    )
