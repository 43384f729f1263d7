"""Keys and values in four bits: a minimum and a step for each token and head, two codes in a byte."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.kv_cache import CODE_MAX
from goldstick.kernels.hadamard_op import hadamard

_MOST = CODE_MAX["int4"]


def nibbles_of(states: Tensor, turned: int = 0) -> tuple[Tensor, Tensor]:
    """Codes of round((x − low) / s), s = (high − low) / 15, for the ends of each token and head; in float32.

    Args:
        states: [batch, kv_heads, tokens, channels], any float dtype.
        turned: How many channels of x a Hadamard transform mixes before, which spreads a large one over all; 0: none.

    Returns:
        int8 [batch, kv_heads, tokens, ⌈channels / 2⌉], an even channel in the low bits and the next in the high ones;
        and s and low, float32 [batch, kv_heads, tokens, 2]. A token whose channels are all alike has s = 1.
    """
    x = states.float()
    if turned:
        x = hadamard(x, turned)
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    step = (high - low) / _MOST
    step = torch.where(step == 0, torch.ones_like(step), step)
    codes = ((x - low) / step).round().clamp(0, _MOST).to(torch.uint8)
    codes = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2))
    return (codes[..., ::2] | (codes[..., 1::2] << 4)).view(torch.int8), torch.cat([step, low], dim=-1)


def numbers_of(codes: Tensor, ends: Tensor, channels: int, dtype: torch.dtype, turned: int = 0) -> Tensor:
    """What the codes of :func:`nibbles_of` stand for, q · s + low in float32, turned back, then cast to ``dtype``."""
    both = codes.view(torch.uint8)
    found = torch.stack([both & _MOST, both >> 4], dim=-1).flatten(-2)[..., :channels]
    numbers = found.float() * ends[..., :1] + ends[..., 1:]
    if turned:
        numbers = hadamard(numbers, turned)  # which is its own inverse
    return numbers.to(dtype)


def turned_together(channels: int) -> int:
    """How many channels a Hadamard transform mixes: the largest power of two that divides them."""
    return channels & -channels
