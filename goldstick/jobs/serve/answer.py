"""A question on its way: its tokens, its cache, and who listens."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor

from goldstick.evaluation.sampling import Sampler
from goldstick.jobs.serve.sequence import Chosen, Ending, Listener, Part, Question, choice_of
from goldstick.jobs.serve.text_stream import TextStream


class Answer:
    """An answer that is being written, in the engine's thread.

    Args:
        question: What it answers.
        listener: Who is told.
        stream: What makes text of its tokens.
        deadline: When it must be finished, on the monotonic clock.
    """

    def __init__(self, question: Question, listener: Listener, stream: TextStream, deadline: float) -> None:
        self.question, self.deadline = question, deadline
        self.ids = list(question.prompt)
        self.read, self.cached = 0, 0  # tokens in the cache, and how many of them others had read
        self.cache: Any = None
        self.started = self.cancelled = False
        self._listener, self._stream = listener, stream
        self._choose = Sampler(question.sampling)
        self._untold: list[Chosen] = []

    @property
    def reading(self) -> bool:
        """Whether its prompt is still being read."""
        return self.read < len(self.question.prompt)

    def cancel(self) -> None:
        """Let it end where it is; from any thread."""
        self.cancelled = True

    def go_on(self, logits: Tensor, ends: Collection[int]) -> Part | None:
        """Choose the next token, and tell of it what can be told.

        Args:
            logits: Of the place, [1, vocabulary].
            ends: Tokens that end an answer, and are no part of it.

        Returns:
            The last part, which is not told yet, if it is finished.
        """
        token = int(self._choose(logits))
        if token in ends:
            return self.part(self._stream.finish(), "stop")
        self.ids.append(token)
        self._untold.append(choice_of(logits, token, self.question.logprobs))
        full = len(self.ids) - len(self.question.prompt) == self.question.max_tokens
        text = self._stream.add(token) + (self._stream.finish() if full else "")
        if self._stream.stopped or full:
            return self.part(text, "stop" if self._stream.stopped else "length")
        if text:
            self.tell(self.part(text, None))
        return None

    def part(self, text: str, ending: Ending | None) -> Part:
        """A part of the answer, with the tokens chosen since the part before."""
        tokens, self._untold = tuple(self._untold), []
        return Part(text=text, tokens=tokens, ending=ending, cached=self.cached)

    def tell(self, part: Part | BaseException) -> None:
        """Tell the listener; one that fails is gone, and the answer is cancelled."""
        try:
            self._listener(part)
        except Exception:
            self.cancel()
