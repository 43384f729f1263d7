"""Two models go on from the same prompts: where their texts part, and how far they are apart at each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.errors import UsageError
from goldstick.evaluation.batching import Advance
from goldstick.evaluation.forward import evaluating, forward, require_numbers
from goldstick.evaluation.kl import token_kl
from goldstick.evaluation.language_model import LanguageModel


@dataclass(kw_only=True)
class PromptDivergence:
    """One prompt, gone on from by both models.

    Args:
        tokens: what the first model chose, greedily.
        kl: KL(p ‖ q) in nats before each of these tokens, both models having read the same tokens before it.
        first_difference: the place, from 0, of the first token that the second model would have chosen otherwise, or
            None; up to there the second model's own greedy text is the same.
        other_token: what it would have chosen there.
    """

    tokens: list[int] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    first_difference: int | None = None
    other_token: int | None = None


def generate_side_by_side(
    first: LanguageModel,
    second: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    advance: Advance | None = None,
) -> list[PromptDivergence]:
    """Let the first model go on from each prompt, token by token, and the second read along.

    Both use their own key and value cache, and both are given the first model's tokens (teacher forcing), so that what
    is found at a token is not the consequence of a different text before it.

    Args:
        first: the model that counts as right.
        second: the other, with the same tokenizer.
        prompts: token sequences of one length.
        max_new_tokens: the most tokens to generate; a prompt ends before, at the end of its text.
        advance: told after each token.

    Raises UsageError for prompts of several lengths or too long for a model's context, QuantizationError for NaN.
    """
    lengths = {len(prompt) for prompt in prompts}
    context = min(first.context_length, second.context_length)
    if len(lengths) != 1 or max(lengths) + max_new_tokens > context:
        raise UsageError(
            f"prompts of {', '.join(map(str, sorted(lengths)))} tokens and {max_new_tokens} new ones: prompts must "
            f"be of one length and, with what is generated, within the context of {context} tokens"
        )
    found = [PromptDivergence() for _ in prompts]
    running = [True] * len(prompts)
    ids = torch.tensor([list(prompt) for prompt in prompts])
    ends = first.end_ids()
    with evaluating(first.model), evaluating(second.model):
        readers = _Reader(first.model), _Reader(second.model)
        for step in range(max_new_tokens):
            right, tried = (require_numbers(reader.read(ids)) for reader in readers)  # [rows, vocabulary]
            kl = token_kl(right, tried).tolist()
            chosen, other = right.argmax(dim=-1).cpu(), tried.argmax(dim=-1).cpu()
            for row, one in enumerate(found):
                if not running[row]:
                    continue
                one.tokens.append(int(chosen[row]))
                one.kl.append(kl[row])
                if one.first_difference is None and chosen[row] != other[row]:
                    one.first_difference, one.other_token = step, int(other[row])
                running[row] = int(chosen[row]) not in ends
            if advance is not None:
                advance(step + 1, max_new_tokens)
            if not any(running):
                break
            ids = torch.cat([ids, chosen[:, None]], dim=1)
    return found


class _Reader:
    """A model that reads a growing text, with its cache where it has one."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._cache: Any = None

    def read(self, ids: Tensor) -> Tensor:
        """The logits behind the last token, [rows, vocabulary]."""
        inputs = ids if self._cache is None else ids[:, -1:]
        mask = torch.ones_like(ids)
        output = forward(self._model, inputs, mask, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self._cache = getattr(output, "past_key_values", None)
        logits: Tensor = output.logits[:, -1]
        return logits
