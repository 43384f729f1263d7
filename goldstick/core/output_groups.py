"""Output groups: parts of a layer's outputs with a statistic of its inputs each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from goldstick.core.inputs import InputObserver


@dataclass(frozen=True, kw_only=True)
class OutputGroups:
    """The inputs of a layer, seen with other weights by each part of its outputs (arXiv 2505.07004).

    Attributes:
        parts: Rows of the weight, from the first to the last, and what they saw.
        plain: The inputs as they are.
        across: Neighbouring rows that are solved together, and the gradients of the loss at these outputs (arXiv
            2505.22988); empty where rows are solved each for itself.
    """

    parts: Sequence[tuple[slice, InputObserver]]
    plain: InputObserver
    across: Sequence[tuple[slice, InputObserver]] = ()
