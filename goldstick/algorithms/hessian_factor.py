"""The Hessian as GPTQ uses it: in which order its columns come, and the factor of its inverse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from goldstick.core.grid import Grid

Order = Literal["gar", "activation", "natural"]


def column_order(diagonal: Tensor, grid: Grid, order: Order) -> Tensor:
    """Which column is rounded when, int64 [in]; equal columns stay in the order of the weight.

    ``activation``: by descending diag(H) (``desc_act``). ``gar`` (arXiv 2505.14638): by descending diag(H) inside each
    group, and groups by their largest, so that groups stay together. ``natural``: as they are.
    """
    if order == "natural":
        return torch.arange(len(diagonal), device=diagonal.device)
    if order == "activation":
        return diagonal.argsort(descending=True, stable=True)
    width = grid.group_width(len(diagonal))
    grouped = diagonal.reshape(-1, width)  # [groups, width]
    inside = grouped.argsort(dim=-1, descending=True, stable=True)
    first = torch.arange(0, len(diagonal), width, device=diagonal.device).unsqueeze(-1)
    return (inside + first)[grouped.amax(-1).argsort(descending=True, stable=True)].flatten()


def inverse_factor(hessian: Tensor, shift: float) -> Tensor | None:
    """U, upper, with (H + shift·I)⁻¹ = UᵀU, float64 [in, in]; ``None`` if that is not positive definite (or overflows).

    With J the reversal of rows and columns and J (H + shift·I) J = L Lᵀ, U = J L⁻¹ J: one factorization, not two.
    """
    damped = hessian.flip(0, 1)
    damped.diagonal().add_(shift)
    lower, failed = torch.linalg.cholesky_ex(damped)
    if int(failed):
        return None
    del damped
    unit = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    factor = torch.linalg.solve_triangular(lower, unit, upper=False).flip(0, 1)
    usable = torch.isfinite(factor).all() and (factor.diagonal() > 0).all()
    return factor if usable else None


def without_dead(hessian: Tensor, dead: Tensor) -> Tensor:
    """H with the rows and columns of dead inputs (bool [in]) cut out, and 1 on their diagonal."""
    if not dead.any():
        return hessian
    cleared = hessian.masked_fill(dead, 0).masked_fill(dead.unsqueeze(-1), 0)
    cleared.diagonal()[dead] = 1
    return cleared


def damping_ladder(damping: float) -> Sequence[float]:
    """What to add to the diagonal, in units of its mean: ``damping``, times ten while that is below 1, then 1."""
    rungs = []
    while damping < 1:
        rungs.append(damping)
        damping *= 10
    return (*rungs, 1.0)
