"""Column importance: what the error of each column counts in a search of ranges."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from goldstick.errors import QuantizationError

#: Where scales and zeros come from.
RangeSearch = Literal["minmax", "mse", "imatrix", "hqq", "ggml", "ggml-imatrix"]
#: The searches that look at the importance of columns.
WITH_IMPORTANCE: tuple[RangeSearch, ...] = ("imatrix", "ggml-imatrix")
#: The published searches of ggml.
OF_GGML: tuple[RangeSearch, ...] = ("ggml", "ggml-imatrix")


def without_importance(search: RangeSearch) -> RangeSearch:
    """What takes the place of a search where nothing is known of the inputs."""
    return {"imatrix": "mse", "ggml-imatrix": "ggml"}.get(search, search)  # type: ignore[return-value]


def importance_of_matrices(weight: Tensor, importance: Tensor | None, search: RangeSearch) -> Tensor | None:
    """float64 [matrices, in], checked; ``None`` for searches that do not use it."""
    if (importance is not None) != (search in WITH_IMPORTANCE):
        raise QuantizationError(
            f"The search {search} takes no importance; {' and '.join(WITH_IMPORTANCE)} do."
            if importance is not None
            else f"The search {search} needs an importance of each input; without data use mse or ggml."
        )
    if importance is None:
        return None
    lead, width = weight.shape[:-2], weight.shape[-1]
    if importance.shape not in ((width,), (*lead, width)):
        raise QuantizationError(
            f"A weight {tuple(weight.shape)} needs an importance of shape {(*lead, width)}, "
            f"not {tuple(importance.shape)}."
        )
    importance = importance.double()
    bad = int((~(torch.isfinite(importance) & (importance >= 0))).sum())
    if bad:
        raise QuantizationError(f"{bad} importances are negative, NaN or infinite.")
    return importance.expand(*lead, width).reshape(-1, width)


def relative(importance: Tensor) -> Tensor:
    """Importances [groups, width] in units of the largest of their group, float32; 1 where nothing counts."""
    largest = importance.amax(-1, keepdim=True)
    return torch.where(largest > 0, importance / largest, torch.ones_like(importance)).float()
