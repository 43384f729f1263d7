"""Validation: rounding to nearest stays where calibration does not help on calibration rows that it has not seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from goldstick.algorithms.stage import DataRequirement, Stage
from goldstick.errors import RecipeError


@dataclass(frozen=True, kw_only=True)
class Validate(Stage):
    """Judge the codes of each layer by calibration batches held out, and round to nearest where that is better there.

    The calibrated stages of the recipe do not see the last ``holdout`` of the batches. When a block is solved, its loss
    on them is the mean of (y − y_float)², y_float what the float block gives on the float model's inputs. Layer after
    layer is rounded to nearest in the place of what was decided, with ranges of least squared error, and stays so where
    that makes the loss smaller; at last all of them are. So on these rows no block is worse than rounding; notes and
    warnings of the report say where rounding stayed.

    Attributes:
        holdout: Share of the calibration batches, the last, that nothing is fitted to; above 0, at most 0.5.
    """

    name: ClassVar[str] = "validate"
    data_requirement: ClassVar[DataRequirement] = DataRequirement.BLOCKWISE
    once: ClassVar[bool] = True
    #: What to do where no batch can be held out, for errors.
    without_holdout: ClassVar[str] = "leave validate out, as --effort fast does"

    holdout: float = 0.125

    def __post_init__(self) -> None:
        if not 0 < self.holdout <= 0.5:
            raise RecipeError(f"holdout is a share of the batches above 0, at most 0.5, not {self.holdout}.")
