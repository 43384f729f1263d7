"""Answers after OpenAI's interface: whole, or in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from goldstick.jobs.serve.sequence import Chosen, Part
from goldstick.jobs.serve.text_stream import HALF
from goldstick.jobs.serve.token_words import Places


@dataclass(kw_only=True)
class Written:
    """What one answer amounts to so far."""

    text: str = ""
    tokens: list[Chosen] = field(default_factory=list)
    ending: str | None = None
    cached: int = 0
    places: Places = field(default_factory=Places)

    def add(self, part: Part) -> None:
        """Take a part more."""
        self.text += part.text
        self.tokens += part.tokens
        self.ending, self.cached = part.ending, part.cached


@dataclass(frozen=True, kw_only=True)
class Form:
    """How answers to one request are written: of a conversation, or of texts to go on from.

    Args:
        model: What the model is called.
        chat: Whether it is a conversation.
        word: The text of tokens, as it is within a text.
        logprobs: Whether log-probabilities are told.
    """

    model: str
    chat: bool
    word: Callable[[Sequence[int]], str]
    logprobs: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answers: Sequence[Written], prompts: Sequence[int]) -> dict[str, Any]:
        """The answers at once.

        Args:
            answers: In their order.
            prompts: Tokens of each prompt.
        """
        return {
            **self._head("chat.completion" if self.chat else "text_completion"),
            "choices": [self._choice(number, answer) for number, answer in enumerate(answers)],
            "usage": usage(answers, prompts),
        }

    def first_chunk(self, number: int) -> dict[str, Any] | None:
        """What comes before the text of an answer."""
        return self._chunk(number, {"role": "assistant", "content": ""}, None, None) if self.chat else None

    def chunk(self, number: int, part: Part, answer: Written) -> dict[str, Any]:
        """A part of an answer, which was sent so far as ``answer`` says."""
        delta = {"content": part.text} if part.text or part.tokens else {}
        logprobs = self._logprobs(part.tokens, answer.places) if part.tokens else None
        return self._chunk(number, delta if self.chat else part.text, logprobs, part.ending)

    def last_chunk(self, answers: Sequence[Written], prompts: Sequence[int]) -> dict[str, Any]:
        """What was used, where that was asked for."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._head(kind), "choices": [], "usage": usage(answers, prompts)}

    def _head(self, kind: str) -> dict[str, Any]:
        name = "chatcmpl" if self.chat else "cmpl"
        return {"id": f"{name}-{self.id}", "object": kind, "created": self.created, "model": self.model}

    def _choice(self, number: int, answer: Written) -> dict[str, Any]:
        content: dict[str, Any] = {"text": answer.text}
        if self.chat:
            content = {"message": {"role": "assistant", "content": answer.text, "refusal": None}}
        return {
            "index": number,
            **content,
            "logprobs": self._logprobs(answer.tokens, answer.places),
            "finish_reason": answer.ending,
        }

    def _chunk(self, number: int, content: Any, logprobs: Any, ending: str | None) -> dict[str, Any]:
        choice = {
            "index": number,
            ("delta" if self.chat else "text"): content,
            "logprobs": logprobs,
            "finish_reason": ending,
        }
        return {**self._head("chat.completion.chunk" if self.chat else "text_completion"), "choices": [choice]}

    def _logprobs(self, tokens: Iterable[Chosen], places: Places) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        if self.chat:
            return {"content": [self._told(one) for one in tokens], "refusal": None}
        return {
            "tokens": [self.word([one.token]) for one in tokens],
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": [self._by_word(one.likeliest) for one in tokens],
            "text_offset": [places.of_next(one.token, self.word) for one in tokens],
        }

    def _by_word(self, likeliest: Iterable[tuple[int, float]]) -> dict[str, float]:
        """By their text; of tokens of one text the likeliest."""
        found: dict[str, float] = {}
        for token, value in likeliest:
            found.setdefault(self.word([token]), value)
        return found

    def _told(self, one: Chosen) -> dict[str, Any]:
        likeliest = [self._word_told(token, value) for token, value in one.likeliest]
        return {**self._word_told(one.token, one.logprob), "top_logprobs": likeliest}

    def _word_told(self, token: int, value: float) -> dict[str, Any]:
        word = self.word([token])
        return {"token": word, "logprob": value, "bytes": None if HALF in word else list(word.encode())}


def usage(answers: Sequence[Written], prompts: Sequence[int]) -> dict[str, Any]:
    """Tokens of prompts and answers; those of the prompts that were not read anew are among them."""
    answered = sum(len(answer.tokens) for answer in answers)
    return {
        "prompt_tokens": sum(prompts),
        "completion_tokens": answered,
        "total_tokens": sum(prompts) + answered,
        "prompt_tokens_details": {"cached_tokens": max((answer.cached for answer in answers), default=0)},
    }
