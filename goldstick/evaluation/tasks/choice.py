"""Choosing among continuations by log-likelihood: what BoolQ, C-Eval and files of one's own share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from goldstick.core.progress import Progress
from goldstick.evaluation.language_model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Question:
    """A context, the continuations to choose from, the index of the right one, and where it stands, for messages."""

    context: str
    choices: Sequence[str]
    answer: int
    place: str = ""


def choose(
    language_model: LanguageModel, questions: Sequence[Question], name: str, progress: Progress | None
) -> list[int]:
    """Return, for each question, the index of the likeliest continuation, the first on a tie.

    Log-likelihoods are summed over a continuation's tokens and not divided by its length.
    """
    return [own.index(max(own)) for own in choice_scores(language_model, questions, name, progress)]


def choice_scores(
    language_model: LanguageModel, questions: Sequence[Question], name: str, progress: Progress | None
) -> list[list[float]]:
    """Return log p(choice | context) in nats of each choice of each question, summed over the choice's tokens.

    DataError, naming the question's place, where a choice is longer than the model's context.
    """
    pairs = [(question.context, choice) for question in questions for choice in question.choices]
    places = [question.place for question in questions for _ in question.choices]
    per_question = len(pairs) / max(len(questions), 1)

    def advance(done: int, total: int) -> None:
        if progress is not None:
            progress(name, int(done / per_question), len(questions))

    scores = iter(language_model.continuation_log_likelihood(pairs, advance, places))
    return [[next(scores) for _ in question.choices] for question in questions]
