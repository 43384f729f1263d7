"""Which tokens of a batch count, whatever shape a layer sees them in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenMask:
    """Which tokens of a batch count: those that a part of a network works on, and those it looks at beside.

    Attributes:
        own: [rows, tokens]; ``None`` for all.
        beside: That of an encoder's tokens where ``own`` is a decoder's.
        encoded: What the encoder gave, by which a layer that is given it is known; ``None`` where that is not known.
    """

    own: Tensor | None = None
    beside: Tensor | None = None
    encoded: Tensor | None = None

    def of(self, tensor: Tensor) -> Tensor | None:
        """The mask in the shape of the tokens of [..., features]; ``None`` where these are no tokens of the batch."""
        encoded = self.encoded is not None and _same_numbers(tensor, self.encoded)
        for mask in (self.beside,) if encoded else (self.own, self.beside):
            fitting = None if mask is None else _laid(mask, tensor.shape[:-1])
            if fitting is not None:
                return fitting
        return None


def token_mask(batch: Mapping[str, Any], encoded: Tensor | None = None) -> TokenMask:
    """That of a batch, for any layer of a network or of a decoder's block.

    Args:
        batch: Keyword arguments of a forward, in which an ``attention_mask`` says which tokens count, and a
            ``decoder_attention_mask`` which of a decoder's.
        encoded: What the encoder gives, where it is known.
    """
    mask, decoder = _matrix(batch.get("attention_mask")), _decoder_mask(batch)
    if decoder is None:
        return TokenMask(mask, _matrix(batch.get("encoder_attention_mask")), encoded)
    return TokenMask(decoder, mask, encoded)


def encoder_mask(batch: Mapping[str, Any]) -> TokenMask:
    """That of a batch for blocks that look at no encoder's output."""
    return TokenMask(_matrix(batch.get("attention_mask")))


def predicted_mask(batch: Mapping[str, Any]) -> TokenMask:
    """Which of the tokens that a model predicts for count."""
    return TokenMask(token_mask(batch).own)


def _decoder_mask(batch: Mapping[str, Any]) -> Tensor | None:
    """Which tokens of a decoder count, [rows, tokens]; ``None`` where the batch gives it none of its own."""
    mask = _matrix(batch.get("decoder_attention_mask"))
    if mask is not None:
        return mask
    for name in ("decoder_input_ids", "decoder_inputs_embeds"):
        if isinstance(given := batch.get(name), Tensor) and given.ndim >= 2:
            return torch.ones(given.shape[:2], dtype=torch.int64, device=given.device)
    return None


def _matrix(value: Any) -> Tensor | None:
    """A mask as [rows, tokens], which may have further sides of one between both."""
    if not isinstance(value, Tensor) or value.ndim < 2 or value.numel() != value.shape[0] * value.shape[-1]:
        return None
    return value.reshape(value.shape[0], value.shape[-1])


def _laid(mask: Tensor, tokens: torch.Size) -> Tensor | None:
    """A mask [rows, tokens] in another shape of as many, or of the tokens before the rows."""
    rows, length = mask.shape
    if mask.numel() != tokens.numel():
        return None
    tokens_first = len(tokens) > 1 and tokens[0] == length != rows
    return (mask.t() if tokens_first else mask).reshape(tokens)


def _same_numbers(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same numbers in memory."""
    return one.data_ptr() == other.data_ptr() and one.numel() == other.numel()
