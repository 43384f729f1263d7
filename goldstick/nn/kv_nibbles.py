"""Keys and values in four bits: a minimum and a step for each token and head, two codes in a byte."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.kv_cache import CODE_MAX
from goldstick.kernels.hadamard_op import hadamard

_MOST = CODE_MAX["int4"]


def nibbles_of(states: Tensor, rotate: bool = False) -> tuple[Tensor, Tensor]:
    """Codes of round((x − low) / s), s = (high − low) / 15, for the ends of each token and head; in float32.

    Args:
        states: [batch, kv_heads, tokens, channels], any float dtype.
        rotate: Whether x is first turned by a Hadamard transform of its channels, which spreads a large one over all.

    Returns:
        int8 [batch, kv_heads, tokens, ⌈channels / 2⌉], an even channel in the low bits and the next in the high ones;
        and s and low, float32 [batch, kv_heads, tokens, 2]. A token whose channels are all alike has s = 1.
    """
    x = states.float()
    if rotate:
        x = hadamard(x, turned_together(x.shape[-1]))
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    step = (high - low) / _MOST
    step = torch.where(step == 0, torch.ones_like(step), step)
    codes = ((x - low) / step).round().clamp(0, _MOST).to(torch.uint8)
    codes = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2))
    return (codes[..., ::2] | (codes[..., 1::2] << 4)).view(torch.int8), torch.cat([step, low], dim=-1)


def numbers_of(codes: Tensor, ends: Tensor, channels: int, dtype: torch.dtype, rotate: bool = False) -> Tensor:
    """What the codes of :func:`nibbles_of` stand for, q · s + low in float32, turned back, then cast to ``dtype``."""
    both = codes.view(torch.uint8)
    found = torch.stack([both & _MOST, both >> 4], dim=-1).flatten(-2)[..., :channels]
    numbers = found.float() * ends[..., :1] + ends[..., 1:]
    if rotate:
        numbers = hadamard(numbers, turned_together(channels))  # which is its own inverse
    return numbers.to(dtype)


def turned_together(channels: int) -> int:
    """How many channels a Hadamard transform mixes: the largest power of two that divides them."""
    return channels & -channels
