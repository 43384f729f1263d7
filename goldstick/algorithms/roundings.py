"""Rounding to nearest, as what calibrated quantizers begin with, are compared with and fall back to."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.algorithms.column_importance import WITH_IMPORTANCE, without_importance
from goldstick.algorithms.ranges import RangeSearch, quantize_with_search
from goldstick.algorithms.solution import Solution
from goldstick.core.counts import counted
from goldstick.core.grid import Grid
from goldstick.core.inputs import InputObserver
from goldstick.core.qtensor import QuantizedTensor


def roundings(
    weight: Tensor, grid: Grid, search: RangeSearch, diagonal: Tensor, largest: Tensor | None = None
) -> dict[str, QuantizedTensor]:
    """Rounding with the ranges of ``search``, which comes first, and with ranges that look at no inputs.

    Args:
        weight: float [out, in].
        grid: What it is rounded to.
        search: Where scales and zeros come from.
        diagonal: Of the Hessian, [in], the importance of columns. That of one that cannot be used may be negative: 0.
        largest: As in :func:`quantize_with_search`.
    """
    importance = diagonal.clamp(min=0) if search in WITH_IMPORTANCE else None
    found: dict[str, QuantizedTensor] = {search: quantize_with_search(weight, grid, search, importance, largest)}
    if search == "ggml-imatrix":
        found["ggml"] = quantize_with_search(weight, grid, "ggml", largest=largest)
    elif search not in ("minmax", "ggml"):
        found["minmax"] = quantize_with_search(weight, grid, "minmax", largest=largest)
    return found


def rounded_without_data(weight: Tensor, grid: Grid, search: RangeSearch, largest: Tensor | None, why: str) -> Solution:
    """Rounding to nearest where the inputs cannot be trusted to say what is important, and ``why``."""
    tensor = quantize_with_search(weight, grid, without_importance(search), largest=largest)
    return Solution(tensor=tensor, fallback=why)


def too_few_inputs(observer: InputObserver, token_floor: float) -> str | None:
    """Why a matrix is not solved: it saw fewer inputs than this fraction of its input features; else ``None``.

    Raises:
        QuantizationError: More than 1 % of the inputs hold NaN or infinity.
    """
    observer.refuse_too_many_dropped()  # few inputs are left then, too, and that is not the reason
    if observer.tokens >= token_floor * observer.in_features:
        return None
    return f"{counted(observer.tokens, 'input')} seen, fewer than {token_floor:g} of {observer.in_features}"


def not_finite(**statistics: Tensor | None) -> str | None:
    """Which of some statistics holds NaN or infinity, and how often; ``None`` where none does."""
    for name, statistic in statistics.items():
        if statistic is not None and not torch.isfinite(statistic.sum()):
            bad = int((~torch.isfinite(statistic)).sum())
            if bad:
                return f"{bad} values of the {name} are NaN or infinite"
    return None
