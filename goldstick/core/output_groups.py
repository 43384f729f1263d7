"""Output groups: parts of a layer's outputs with a statistic of its inputs each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from goldstick.core.inputs import InputObserver
from goldstick.core.ranks import Ranks

Value = TypeVar("Value")

TOGETHER = 1024
"""Outputs whose gradients are looked at together, at most: their products take eight bytes for each pair."""


def neighbours(outputs: int) -> list[tuple[slice, InputObserver]]:
    """Parts of some outputs, as few as can be looked at together and all about as long, each with an observer."""
    parts = torch.arange(outputs).tensor_split(-(-outputs // TOGETHER))
    return [(slice(int(part[0]), int(part[-1]) + 1), InputObserver(len(part))) for part in parts]


@dataclass(frozen=True, kw_only=True)
class OutputGroups:
    """The inputs of a layer, seen with other weights by each part of its outputs (arXiv 2505.07004).

    Attributes:
        parts: Rows of the weight, from the first to the last, and what they saw.
        plain: The inputs as they are.
        sizes: What the squares of each part's inputs are to be multiplied by, for errors of parts and layers to be in
            one unit: powers of two.
        across: Neighbouring rows that are solved together, and the gradients of the loss at these outputs (arXiv
            2505.22988); empty where rows are solved each for itself.
        ranks: Who solves the parts, one of them each; alone where every part is solved here.
    """

    parts: Sequence[tuple[slice, InputObserver]]
    plain: InputObserver
    sizes: Sequence[float]
    across: Sequence[tuple[slice, InputObserver]] = ()
    ranks: Ranks = field(default_factory=Ranks)

    def each(self, do: Callable[[slice, InputObserver], Value]) -> list[Value]:
        """What ``do`` gives for each part."""
        return self.ranks.each([1.0] * len(self.parts), lambda number: do(*self.parts[number]))
