"""What a sweep has to do that measures the inputs of layers and leaves their weights as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from goldstick.calibration.task import Assignment, Work
from goldstick.core.edits import Quantize
from goldstick.core.error import WeightError
from goldstick.recipes.resolve import Resolution
from goldstick.recipes.run import Measured, calibrated_work
from goldstick.structure.network import Network


def measuring_work(network: Network, resolution: Resolution, measured: Measured) -> Work:
    """The work of the stages that look at data, without what they decide.

    Args:
        network: The network.
        resolution: Which layers are looked at.
        measured: Told how large the inputs of each are.
    """
    return dataclasses.replace(calibrated_work(network, resolution, _unheard, measured), decide=_nothing)


def _unheard(task: Assignment, edit: Quantize, error: WeightError) -> None:
    raise AssertionError(f"{task.site.name} was rounded")


def _nothing(task: Assignment, weight: Tensor, state: Any, notes: Mapping[str, float | str]) -> None:
    return None
