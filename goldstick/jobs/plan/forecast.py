"""How long a recipe will take, from the shapes of what it rounds and from how often its stages show it the data."""

from __future__ import annotations

import math
from collections.abc import Sequence

from goldstick.algorithms.stage import Stage
from goldstick.calibration.data.samples import TOKENS_PER_BATCH
from goldstick.recipes.calibration import Calibration

#: Bytes per second of reading, rounding and writing on one core, measured with range search minmax.
STREAM_SPEED = 150_000_000
#: Floating-point operations per second of a float32 matrix product on two cores, measured.
MATMUL_SPEED = 100_000_000_000
#: What else a block does to a token (norms, attention, …), in inputs and outputs of its layers per second, measured.
FEATURE_SPEED = 300_000_000


def streaming_seconds(stages: Sequence[Stage], nbytes: int) -> float:
    """The time in which so many bytes of weights are read, rounded and written."""
    searched = any(getattr(stage, "range_search", "minmax") != "minmax" for stage in stages)
    return nbytes / STREAM_SPEED * (8 if searched else 1) + 5


def calibration_seconds(
    stages: Sequence[Stage], matrices: Sequence[Sequence[int]], settings: Calibration, context: int
) -> float:
    """The time that stages look at the data and learn from it; what solving the layers takes is not in it.

    Args:
        stages: Of the recipe.
        matrices: Shapes of what is rounded, [..., out, in].
        settings: The data.
        context: Tokens that the model reads together at most.
    """
    cut = settings.model_copy(update={"seq_len": min(settings.seq_len, context)})
    further = cut.tokens // cut.seq_len - cut.samples  # rows of random tokens, which are batches of their own
    batches = math.ceil(cut.samples / max(1, TOKENS_PER_BATCH // cut.seq_len)) + further
    weights = sum(math.prod(shape) for shape in matrices)
    features = sum(sum(shape[-2:]) for shape in matrices)
    forward = cut.tokens * (2 * weights / MATMUL_SPEED + features / FEATURE_SPEED)
    return (1 + sum(stage.passes(batches) for stage in stages)) * forward
