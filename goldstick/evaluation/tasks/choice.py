"""Choosing among continuations by log-likelihood: what BoolQ and C-Eval share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from goldstick.core.progress import Progress
from goldstick.evaluation.language_model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Question:
    """A context, the continuations to choose from, and the index of the right one."""

    context: str
    choices: Sequence[str]
    answer: int


def choose(
    language_model: LanguageModel, questions: Sequence[Question], name: str, progress: Progress | None
) -> list[int]:
    """Return, for each question, the index of the likeliest continuation, the first on a tie.

    Log-likelihoods are summed over a continuation's tokens and not divided by its length.
    """
    pairs = [(question.context, choice) for question in questions for choice in question.choices]
    per_question = len(pairs) / max(len(questions), 1)

    def advance(done: int, total: int) -> None:
        if progress is not None:
            progress(name, int(done / per_question), len(questions))

    scores = iter(language_model.continuation_log_likelihood(pairs, advance))
    chosen = []
    for question in questions:
        own = [next(scores) for _ in question.choices]
        chosen.append(own.index(max(own)))
    return chosen
