"""A conversation with a model: what was said, as far as it fits the context."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from dataclasses import dataclass

from goldstick.errors import UsageError
from goldstick.evaluation.sampling import Sampling
from goldstick.jobs.serve.engine import Engine
from goldstick.jobs.serve.prompts import Prompts
from goldstick.jobs.serve.sequence import Part, Question


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How answers of a conversation are written.

    Attributes:
        max_tokens: Tokens of an answer at most; half the context where that is less.
        temperature: As of :class:`Sampling`.
        top_p: As of :class:`Sampling`.
        seed: Of the first answer; each has the next. Any where ``None``.
        system: What the system says first.
    """

    max_tokens: int = 512
    temperature: float = 0.7
    top_p: float = 1.0
    seed: int | None = None
    system: str | None = None


class Conversation:
    """What was said so far. Where it outgrows the context, the oldest questions and their answers are left out.

    Args:
        engine: The model at work.
        prompts: What makes token ids of it.
        manner: How answers are written.

    Attributes:
        left_out: Messages that the last question left out.
    """

    def __init__(self, engine: Engine, prompts: Prompts, manner: Manner | None = None) -> None:
        self._engine, self._prompts, self._manner = engine, prompts, manner or Manner()
        seed = self._manner.seed
        self._first_seed = secrets.randbits(62) if seed is None else seed
        self.reset()

    def reset(self) -> None:
        """Forget what was said."""
        self.said: list[dict[str, str]] = []
        self.left_out = self._answered = 0

    def answer(self, text: str) -> Generator[Part, None, None]:
        """The parts of the answer to what a user says; as far as it was taken, it belongs to the conversation.

        Raises:
            UsageError: It does not fit the context, or the model has no chat template.
            DataError: The template refuses it.
        """
        most = min(self._manner.max_tokens, self._engine.context // 2)
        prompt = self._fitted([*self.said, {"role": "user", "content": text}], self._engine.context - most)
        sampling = Sampling(
            temperature=self._manner.temperature,
            top_p=self._manner.top_p,
            seed=(self._first_seed + self._answered) % 2**63,
        )
        question = Question(prompt=tuple(prompt), max_tokens=most, sampling=sampling)
        answer, self._answered = "", self._answered + 1
        try:
            for part in self._engine.stream(question):
                answer += part.text
                yield part
        finally:
            self.said += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]

    def _fitted(self, messages: list[dict[str, str]], room: int) -> list[int]:
        before = [] if self._manner.system is None else [{"role": "system", "content": self._manner.system}]
        for start in range(0, len(messages), 2):
            ids = self._prompts.of_messages([*before, *messages[start:]])
            if len(ids) <= room:
                self.left_out = start
                return ids
        raise UsageError(
            f"This is {len(ids)} tokens, and the context of {self._engine.context} leaves {room} for it: say it in "
            "fewer words."
        )
