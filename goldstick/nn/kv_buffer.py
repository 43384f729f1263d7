"""KVBuffer: tokens at the front of a buffer, where more can be written behind them without copying what is there."""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST_ROOM = 64


class KVBuffer:
    """Keys, values, codes or scales of one layer's tokens, with room for some more.

    What it gives out are views of its buffer. A view that somebody else cut, reordered or extended is no longer the one
    given out last, and gets a room of its own; so no two caches ever write to the same place.

    Args:
        states: The tokens so far, [batch, heads, tokens, channels].
        more: How many are going to be added at least.
    """

    def __init__(self, states: Tensor, more: int = 1) -> None:
        batch, heads, tokens, channels = states.shape
        self.buffer = states.new_empty(batch, heads, tokens + tokens // 4 + more + _LEAST_ROOM, channels)
        self.buffer[:, :, :tokens] = states
        self.filled = tokens
        self.seen: Tensor | None = None  # what was given out last

    def fits(self, states: Tensor, more: int = 1) -> bool:
        """Whether ``states`` are what was given out last, and so many have a place behind them."""
        return states is self.seen and states.shape[2] == self.filled <= self.buffer.shape[2] - more

    def extended(self, tokens: int = 1) -> Tensor:
        """All tokens, with those that were written behind them."""
        self.filled += tokens
        self.seen = self.buffer.narrow(2, 0, self.filled)
        return self.seen

    def joined(self, states: Tensor) -> Tensor:
        """All tokens, after ``states`` [batch, heads, any, channels] have been written behind them."""
        self.buffer.narrow(2, self.filled, states.shape[2]).copy_(states)
        return self.extended(states.shape[2])


def joined(buffer: KVBuffer | None, old: Tensor, new: Tensor) -> tuple[KVBuffer | None, Tensor]:
    """``old`` and ``new`` along the tokens: written behind each other, or copied where ``new`` is much of the whole.

    Returns:
        The buffer in which they lie, if they lie in one, and all tokens.
    """
    added = new.shape[2]
    if added == 0:
        return buffer, old
    if 4 * added > old.shape[2]:
        return None, torch.cat([old, new], dim=2)
    if buffer is None or not buffer.fits(old, added):
        buffer = KVBuffer(old, added)
    return buffer, buffer.joined(new)
