"""Sequences through a model: prompts in pieces that begin at fixed places, then a token at a time.

A pass over a prompt holds tokens of one sequence. A pass of new tokens may hold one of each of several, where all that
multiplies them gives a row the same bits in any company: quantized layers and attention in C++ do, and float layers
multiply row by row. So a sequence gets the same numbers, to the bit, whoever else is answered meanwhile, and whether
its first pieces were read for it or for an earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.evaluation.forward import embedding_rows, forward, require_numbers, takes
from goldstick.evaluation.looking_back import require_looking_back
from goldstick.nn.fused.decode_block import FusedDecodeBlock
from goldstick.nn.fused.separate_caches import NotTogetherError, SeparateCaches, row_by_row

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
        together: Whether several sequences get their next tokens in one pass, which was tried with three.

    Raises:
        UsageError: A token of the model sees those behind it.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        require_looking_back(model)
        self.in_pieces = self.together = False
        self.in_pieces = self._same_in_pieces()
        self._apart = _float_layers(model)
        self.together = self.in_pieces and self._same_together()

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

    @torch.no_grad()
    def advance_together(self, tokens: Sequence[int], caches: Sequence[Any]) -> list[Tensor] | None:
        """Run over a token of each sequence behind its cache, in one pass; the caches are extended.

        Returns:
            Logits [1, vocabulary] for each, those of :meth:`advance` to the bit; ``None`` where that is not possible,
            and the caches are as they were.
        """
        joined = SeparateCaches(caches)
        lengths = [cache.get_seq_length() for cache in caches]
        try:
            with row_by_row(self._apart):
                output = self.model(
                    input_ids=torch.tensor(tokens)[:, None],
                    position_ids=torch.tensor(lengths)[:, None],
                    past_key_values=joined,
                    use_cache=True,
                    logits_to_keep=1,
                )
        except NotTogetherError:
            return None
        joined.extend()
        return list(output.logits[:, -1].split(1))

    def _same_together(self) -> bool:
        """Try whether three sequences get from one pass what each gets alone, to the bit."""
        if not all(takes(self.model, argument) for argument in ("position_ids", "past_key_values", "logits_to_keep")):
            return False
        blocks = {module.forward.attention.layer for module in self.model.modules() if _is_fused(module)}
        rows = embedding_rows(self.model) or 1
        prompts = [[number % rows for number in range(1, 2 + length)] for length in (1, 3, 2)]
        alone = []
        for prompt in prompts:
            _, cache = self.advance(prompt, 0, len(prompt) - 1, None)
            if blocks != {*range(len(cache.layers))}:
                return False
            logits, _ = self.advance(prompt, len(prompt) - 1, len(prompt), cache)
            alone.append(logits)
        caches = [self.advance(prompt, 0, len(prompt) - 1, None)[1] for prompt in prompts]
        try:
            together = self.advance_together([prompt[-1] for prompt in prompts], caches)
        except Exception:  # a model that asks more of its cache takes turns
            return False
        return together is not None and all(map(torch.equal, alone, together))

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


def _is_fused(module: nn.Module) -> bool:
    return isinstance(module.__dict__.get("forward"), FusedDecodeBlock)


def _float_layers(model: nn.Module) -> list[nn.Linear]:
    """Float linear layers outside of the blocks that run in C++, such as the head."""
    inside = {id(module) for block in model.modules() if _is_fused(block) for module in block.modules()}
    return [module for module in model.modules() if type(module) is nn.Linear and id(module) not in inside]


def _grows(cache: Any) -> bool:
    layers: list[Any] = getattr(cache, "layers", None) or []
    return bool(layers) and all(type(layer).__name__ in _GROWING for layer in layers)
