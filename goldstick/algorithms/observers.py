"""The statistics of a site's inputs: one observer, or one for each expert."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from goldstick.core.inputs import InputObserver
from goldstick.errors import QuantizationError
from goldstick.structure.network import Site

Observers = InputObserver | Sequence[InputObserver]


def observers_for(site: Site) -> InputObserver | list[InputObserver]:
    """The Hessian of the site's inputs; for experts a list of them, one each."""
    experts = site.matrix_shape[:-2]
    if not experts:
        return InputObserver(site.in_features)
    return [InputObserver(site.in_features) for _ in range(math.prod(experts))]


def observers_of(state: Observers, weight: Tensor) -> list[InputObserver]:
    """The observer of each matrix of ``weight`` [..., out, in], in order.

    Raises:
        QuantizationError: There are more or fewer.
    """
    observers = [state] if isinstance(state, InputObserver) else list(state)
    matrices = math.prod(weight.shape[:-2])
    if len(observers) != matrices:
        raise QuantizationError(f"{matrices} matrices need a Hessian each, not {len(observers)}.")
    return observers
