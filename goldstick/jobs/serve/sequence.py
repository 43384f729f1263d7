"""What is asked of a model, and what it gives: an answer piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from goldstick.errors import GoldstickError
from goldstick.evaluation.sampling import Sampling

#: Why an answer ended: the model or a stop string, its length, or nobody wanted it any more.
Ending = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Question:
    """A prompt, and how it is to be answered.

    Attributes:
        prompt: Token ids, one at least.
        max_tokens: Tokens of the answer at most.
        sampling: How tokens are drawn.
        stop: Strings before which the answer ends.
        logprobs: For how many of the likeliest tokens of each place log-probabilities are wanted, beside the chosen
            one; ``None`` wants none.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))
    stop: tuple[str, ...] = ()
    logprobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A token of an answer: its id, log p of it, and (id, log p) of the likeliest."""

    token: int
    logprob: float = 0.0
    likeliest: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of an answer.

    Attributes:
        text: What is added to the text.
        tokens: What was chosen since the part before.
        ending: Why nothing follows, where nothing does.
        cached: Tokens of the prompt that did not have to be read.
    """

    text: str
    tokens: tuple[Chosen, ...] = ()
    ending: Ending | None = None
    cached: int = 0


class TimedOutError(GoldstickError):
    """An answer took longer than the server gives it."""


class StoppingError(GoldstickError):
    """The server was told to stop before an answer was finished."""


class FullError(GoldstickError):
    """More wait for an answer than the server lets wait."""


#: What is told of an answer; an error is the last that is told.
Listener = Callable[[Part | BaseException], None]


def choice_of(logits: Tensor, token: int, likeliest: int | None) -> Chosen:
    """A token with the log-probabilities that are wanted of its place; logits [1, vocabulary], in float32."""
    if likeliest is None:
        return Chosen(token=token)
    scores = torch.log_softmax(logits[0].float(), dim=-1)
    values, ids = scores.topk(min(likeliest, len(scores)))
    return Chosen(
        token=token,
        logprob=float(scores[token]),
        likeliest=tuple(zip(ids.tolist(), values.tolist(), strict=True)),
    )
