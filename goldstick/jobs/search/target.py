"""What a search is asked for, and what it found."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, SupportsFloat

from goldstick.errors import UsageError
from goldstick.jobs.search.layers import Layers
from goldstick.jobs.search.losses import METRICS, Metric
from goldstick.recipes.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is asked for; exactly one of the first three.

    Attributes:
        size: Bytes of the weight files, at most.
        bits: Bits of those files for each weight of the model, at most.
        max_loss: The largest loss: a fraction by which perplexity grows, or KL per token in nats.
        share: Part of the bytes of the source's tensors, at most.
        metric: What ``max_loss`` is of.
    """

    size: int | None = None
    bits: float | None = None
    share: float | None = None
    max_loss: float | None = None
    metric: Metric = "perplexity"

    def __post_init__(self) -> None:
        given = [value for value in (self.size, self.bits, self.share, self.max_loss) if value is not None]
        if len(given) != 1:
            raise UsageError("Ask for one thing: a size, bits a weight, a part of the size, or a largest loss.")
        asked: object = given[0]
        if isinstance(asked, bool) or not isinstance(asked, SupportsFloat) or not 0 < float(asked) < math.inf:
            raise UsageError(f"What is asked for is a number above 0, not {asked!r}.")
        if self.metric not in METRICS:
            raise UsageError(f"A loss is of {' or '.join(METRICS)}, not of {self.metric!r}.")

    def bytes_of(self, layers: Layers) -> int:
        """Bytes of the weight files, where a size is asked for."""
        if self.size is not None:
            return int(self.size)
        asked = self.bits * layers.weights / 8 if self.bits is not None else (self.share or 0) * layers.source
        return int(min(asked, sys.maxsize))  # a product beyond floating point is infinite


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        recipe: The recipe.
        nbytes: Bytes of its weight files.
        record: Everything that the page shows, as plain data.
    """

    recipe: Recipe
    nbytes: int
    record: dict[str, Any]
