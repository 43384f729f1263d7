"""One sequence through a model: its prompt in pieces that begin at fixed places, then a token at a time.

Every pass has a shape that depends on the sequence's own tokens alone. So a sequence gets the same numbers, to the bit,
whoever else is answered meanwhile, and whether its first pieces were read for it or for an earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from goldstick.evaluation.forward import embedding_rows, forward, require_numbers

#: Tokens of a prompt that are read in one pass: enough that products of matrices run at their full speed.
PIECE = 64

#: Caches' layers after transformers' that may be given several tokens behind others. By name, since a subclass may keep
#: less, and other kinds (of linear attention) begin anew.
_GROWING = {"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer", "QuantizedLayer"}

#: Σ(a − b)² / Σb² of logits read in pieces and at once: rounding of 8-bit inputs, and far from another text's.
_CLOSE = 1e-2


class Decoder:
    """A causal language model that reads sequences of one row each.

    Args:
        model: After transformers' calling convention. Where it gives no ``past_key_values`` every step runs over the
            whole sequence: slower, the same tokens.

    Attributes:
        in_pieces: Whether prompts are read in pieces, which was tried with four tokens; else in one pass.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.in_pieces = False
        self.in_pieces = self._same_in_pieces()

    def end_of_pass(self, read: int, prompt: int, known: int) -> int:
        """Where the next pass over a sequence ends.

        Args:
            read: Tokens that its cache holds.
            prompt: Tokens of its prompt.
            known: All its tokens.
        """
        if self.in_pieces and read < prompt:
            return min((read // PIECE + 1) * PIECE, prompt)
        return known

    @torch.no_grad()
    def advance(self, ids: Sequence[int], read: int, end: int, cache: Any) -> tuple[Tensor, Any]:
        """Run over ``ids[read:end]`` behind a cache of the tokens before.

        Returns:
            Logits [1, vocabulary] of the token behind ``end``, and the cache, which is ``None`` where the model has
            none.

        Raises:
            QuantizationError: The logits are NaN.
        """
        read = 0 if cache is None else read
        output = forward(
            self.model,
            torch.tensor([list(ids[read:end])]),
            torch.ones((1, end), dtype=torch.long),
            position_ids=torch.arange(read, end)[None],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return require_numbers(output.logits[:, -1]), getattr(output, "past_key_values", None)

    def _same_in_pieces(self) -> bool:
        """Try whether four tokens give in two passes what they give in one."""
        rows = embedding_rows(self.model)
        ids = [number % (rows or 1) for number in (1, 2, 3, 0)]
        whole, cache = self.advance(ids, 0, len(ids), None)
        if not _grows(cache):
            return False
        _, cache = self.advance(ids, 0, 2, None)
        parts, _ = self.advance(ids, 2, len(ids), cache)
        difference, size = (parts.double() - whole.double()).square().sum(), whole.double().square().sum()
        return bool(difference <= _CLOSE * size)


def _grows(cache: Any) -> bool:
    layers: list[Any] = getattr(cache, "layers", None) or []
    return bool(layers) and all(type(layer).__name__ in _GROWING for layer in layers)
