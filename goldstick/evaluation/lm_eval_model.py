"""A `LanguageModel` as lm-evaluation-harness sees models: the one file that imports its classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from lm_eval.api.model import LM

from goldstick.errors import UsageError
from goldstick.evaluation.language_model import LanguageModel

MOST_NEW_TOKENS = 256
"""Tokens to generate where a task does not say; the harness's own default."""


class HarnessModel(LM):  # type: ignore[misc]
    """Answers the three kinds of requests of lm-evaluation-harness with a `LanguageModel`.

    Args:
        language_model: the model.
        advance: told the requests that are done, and all of the same kind.
    """

    def __init__(self, language_model: LanguageModel, advance: Callable[[int, int], None] | None = None) -> None:
        super().__init__()
        self.language_model, self.advance = language_model, advance

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return (log p, whether greedy decoding would give it) of each (context, continuation)."""
        return self.language_model.continuation_scores([request.args for request in requests], self.advance)

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return log p of each text, every token of it predicted."""
        return self.language_model.text_log_likelihood([request.args[0] for request in requests], self.advance)

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return what greedy decoding goes on with, up to the first of the words to stop at.

        Raises UsageError where a task asks for samples.
        """
        together: dict[tuple[tuple[str, ...], int], list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            together[_settings(request.args[1])].append(index)
        texts, done = [""] * len(requests), 0
        for (until, most), own in together.items():
            prompts = [requests[index].args[0] for index in own]
            for index, text in zip(own, self.language_model.generate_greedy(prompts, most, until), strict=True):
                texts[index] = text
            done += len(own)
            if self.advance is not None:
                self.advance(done, len(requests))
        return texts


def _settings(asked: dict[str, Any]) -> tuple[tuple[str, ...], int]:
    """Words to stop at and the most new tokens, of the settings of a task."""
    if asked.get("do_sample") or asked.get("temperature") or asked.get("num_beams", 1) != 1:
        raise UsageError(f"goldstick generates greedily; the task asks for {asked}")
    until = asked.get("until") or ()
    most = asked.get("max_gen_toks", asked.get("max_new_tokens", MOST_NEW_TOKENS))
    return (until,) if isinstance(until, str) else tuple(until), int(most)
