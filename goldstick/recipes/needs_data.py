"""Whether a recipe's stages look at data, which is known before anything is run."""

from __future__ import annotations

from collections.abc import Iterable

from goldstick.algorithms import DataRequirement, Stage
from goldstick.algorithms.base import rounds


def needs_data(stages: Iterable[Stage]) -> bool:
    """Whether a stage looks at data."""
    return any(stage.data_requirement is not DataRequirement.NONE or _finds_input_ranges(stage) for stage in stages)


def _finds_input_ranges(stage: Stage) -> bool:
    return rounds(stage) and any(one.static_input for one in stage.schemes())
