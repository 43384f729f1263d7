"""Choosing the next token: the likeliest, or one drawn by temperature and nucleus."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from goldstick.errors import UsageError


def likeliest(logits: Tensor) -> Tensor:
    """The likeliest token of each row, the lowest id on a tie: ``[rows, vocabulary]`` to ``[rows]``."""
    return logits.argmax(dim=-1)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn: from ``softmax(logits / temperature)`` cut to its nucleus (arXiv 1904.09751).

    Args:
        temperature: What logits are divided by, 0 to 2; at 0 the likeliest token is taken.
        top_p: The share of probability, above 0 up to 1, that the fewest likeliest tokens must reach; others are out.
        seed: Where the draws start; the same seed gives the same tokens.

    Raises:
        UsageError: A setting is outside its range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 2:
            raise UsageError(f"temperature={self.temperature} must be from 0 to 2")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p={self.top_p} must be above 0 and at most 1")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed={self.seed} must be from 0 to 2**63 - 1")


class Sampler:
    """Draws tokens one step after the other, with a random generator of its own."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = torch.Generator().manual_seed(sampling.seed)

    def __call__(self, logits: Tensor) -> Tensor:
        """A token for each row: logits ``[rows, vocabulary]``, any float dtype, to ids ``[rows]`` on the CPU."""
        if self._sampling.temperature == 0:
            return likeliest(logits).cpu()
        scaled = logits.detach().cpu().double()
        scaled = (scaled - scaled.amax(dim=-1, keepdim=True)) / self._sampling.temperature
        probabilities, order = scaled.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
        if self._sampling.top_p < 1:
            before = probabilities.cumsum(dim=-1) - probabilities
            outside = before >= self._sampling.top_p
            outside[:, 0] = False
            probabilities = probabilities.masked_fill(outside, 0)
        return order.gather(-1, torch.multinomial(probabilities, 1, generator=self._random))[:, 0]
