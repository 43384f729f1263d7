"""The Hessian as GPTQ uses it: in which order its columns come, and the factor of its inverse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from goldstick.core.freed_memory import make_room
from goldstick.core.grid import Grid

#: Rows and columns that a step of the factorization takes.
_BLOCK = 384
_DAMPING = 0.01  # GPTQ's own, by default

Order = Literal["gar", "activation", "natural"]


def column_order(diagonal: Tensor, grid: Grid, order: Order) -> Tensor:
    """Which column is rounded when, int64 [in]; equal columns stay in the order of the weight.

    ``activation``: by descending diag(H) (``desc_act``). ``gar`` (arXiv 2505.14638): by descending diag(H) inside each
    group, and groups by their largest, so that groups stay together. ``natural``: as they are.
    The last block of a row may be cut off.
    """
    if order == "natural":
        return torch.arange(len(diagonal), device=diagonal.device)
    if order == "activation":
        return diagonal.argsort(descending=True, stable=True)
    width = grid.group_width(len(diagonal))
    whole = torch.nn.functional.pad(diagonal, (0, -len(diagonal) % width), value=-torch.inf)
    grouped = whole.reshape(-1, width)  # [groups, width]
    inside = grouped.argsort(dim=-1, descending=True, stable=True)
    first = torch.arange(0, len(whole), width, device=diagonal.device).unsqueeze(-1)
    columns = (inside + first)[grouped.amax(-1).argsort(descending=True, stable=True)].flatten()
    return columns[columns < len(diagonal)]


def inverse_factor(
    hessian: Tensor, shift: float, columns: Tensor | None = None, *, overwrite: bool = False
) -> Tensor | None:
    """U, upper, with (H + shift·I)⁻¹ = UᵀU, float64 [in, in]; ``None`` if that is not positive definite (or overflows).

    With H + shift·I = R Rᵀ, R upper (the factorization read backwards), U = R⁻¹: one factorization, not two. Both steps
    work in the storage of U, block by block, so that nothing else of its size is held.

    Args:
        hessian: H, float64 [in, in], symmetric.
        shift: What is added to its diagonal. The rows and columns of inputs with H_jj = 0 are cut out, with 1 on the
            diagonal.
        columns: Order in which its rows and columns are taken, int64 [in]; as they are where ``None``.
        overwrite: Whether U may take the storage of H, which is then lost. Where there is no U, H is what it was, with
            zeros in the rows and columns that were cut out.
    """
    order = torch.arange(len(hessian), device=hessian.device) if columns is None else columns
    make_room(hessian.nbytes)
    if overwrite:
        factor = hessian
        _permute(factor, order)
    else:
        factor = torch.empty_like(hessian)
        for start in range(0, len(order), _BLOCK):
            factor[start : start + _BLOCK] = hessian[order[start : start + _BLOCK]][:, order]
    dead = factor.diagonal() == 0
    if dead.any():
        factor.masked_fill_(dead, 0).masked_fill_(dead.unsqueeze(-1), 0)
    corners = [corner.clone() for corner in _corners(factor)] if overwrite else []
    factor.diagonal().add_(shift).masked_fill_(dead, 1 + shift)
    if _factorize(factor):
        invert_upper(factor)
        # Infinity and NaN never leave a sum, which takes no memory.
        if torch.isfinite(factor.sum()) and (factor.diagonal() > 0).all():
            return factor.triu_()
    for corner, saved in zip(_corners(factor), corners, strict=False):  # none where H is still there
        corner.copy_(saved)
    if overwrite:
        _mirror_lower(factor)
        _permute(factor, order.argsort())
    return None


def uncompensated(hessian: Tensor, grid: Grid) -> Tensor | None:
    """What the error of each column still costs when all columns after it have made up for it, float64 [in].

    dⱼ = 1 / Uⱼⱼ², with U of :func:`inverse_factor` and columns in the order ``gar``: the part of input j that no linear
    combination of the inputs after it predicts. A column's rounding error e adds e²·dⱼ to what GPTQ leaves of
    tr((W − Ŵ) H (W − Ŵ)ᵀ), where rounding alone adds e²·H_jj and what it shares with other columns (arXiv 2210.17323).

    Args:
        hessian: H, float64 [in, in]; its storage is used, and H lost.
        grid: The groups of the columns.

    Returns:
        d, zero for inputs that were always zero; ``None`` if H is not positive definite, however much it is damped.
    """
    diagonal = hessian.diagonal().clone()
    dead = diagonal == 0
    if dead.all():
        return None
    columns = column_order(diagonal, grid, "gar")
    for damping in damping_ladder(_DAMPING):
        factor = inverse_factor(hessian, damping * float(diagonal[~dead].mean()), columns, overwrite=True)
        if factor is not None:
            left = torch.empty_like(diagonal)
            left[columns] = 1 / factor.diagonal().square()
            return left.masked_fill_(dead, 0)
    return None


def _permute(matrix: Tensor, order: Tensor) -> None:
    """Take the rows and the columns of ``matrix`` in an order, in its place."""
    for start in range(0, len(order), _BLOCK):
        rows = matrix[start : start + _BLOCK]
        rows.copy_(rows[:, order])
    for start in range(0, len(order), _BLOCK):
        columns = matrix[:, start : start + _BLOCK]
        columns.copy_(columns[order])


def _corners(matrix: Tensor) -> list[Tensor]:
    """The blocks on the diagonal."""
    return [matrix[start : start + _BLOCK, start : start + _BLOCK] for start in range(0, len(matrix), _BLOCK)]


def _mirror_lower(matrix: Tensor) -> None:
    """Copy the blocks below the diagonal, which no step writes to, to those above it."""
    for start in range(0, len(matrix), _BLOCK):
        stop = start + _BLOCK
        matrix[start:stop, stop:] = matrix[stop:, start:stop].T


def _factorize(matrix: Tensor) -> bool:
    """R, upper, with R Rᵀ = ``matrix`` in its place; false if it is not positive definite.

    Blocks below the diagonal are left alone.
    """
    for start in reversed(range(0, len(matrix), _BLOCK)):
        stop = min(start + _BLOCK, len(matrix))
        lower, failed = torch.linalg.cholesky_ex(matrix[start:stop, start:stop].flip(0, 1))
        if int(failed):
            return False
        corner = lower.flip(0, 1)
        matrix[start:stop, start:stop] = corner
        panel = matrix[:start, start:stop]
        panel.copy_(torch.linalg.solve_triangular(corner.T, panel, upper=False, left=False))
        for first in range(0, start, _BLOCK):
            last = min(first + _BLOCK, start)
            matrix[:last, first:last].addmm_(panel[:last], panel[first:last].T, alpha=-1)
    return True


def invert_upper(matrix: Tensor) -> None:
    """The inverse of the upper triangle of ``matrix`` in its place; blocks below the diagonal are left alone."""
    for corner in _corners(matrix):
        corner.triu_()
    for start in range(0, len(matrix), _BLOCK):
        stop = min(start + _BLOCK, len(matrix))
        corner = matrix[start:stop, start:stop]
        unit = torch.eye(stop - start, dtype=matrix.dtype, device=matrix.device)
        inverse = torch.linalg.solve_triangular(corner, unit, upper=True)
        for first in range(0, start, _BLOCK):  # from the top: a row needs those below it as they were
            last = min(first + _BLOCK, start)
            product = matrix[first:last, first:start] @ matrix[first:start, start:stop]
            matrix[first:last, start:stop] = -(product @ inverse)
        corner.copy_(inverse)


def damping_ladder(damping: float) -> Sequence[float]:
    """What to add to the diagonal, in units of its mean: ``damping``, times ten while that is below 1, then 1."""
    rungs = []
    while damping < 1:
        rungs.append(damping)
        damping *= 10
    return (*rungs, 1.0)
