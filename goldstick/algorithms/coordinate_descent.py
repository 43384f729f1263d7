"""Coordinate descent on the codes and the scales of a layer, from what the column loop has left."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from goldstick.algorithms.column_loop import solve_columns
from goldstick.algorithms.hessian_factor import invert_upper
from goldstick.algorithms.output_error import row_errors
from goldstick.algorithms.row_ranges import better_rows
from goldstick.core.grid import POWERS_OF_TWO, Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.rows import row_chunks

_BLOCK = 256
_FLOAT8 = torch.float8_e4m3fn
_FLOAT8_LARGEST = 448.0


def damped_hessian(hessian: Tensor, shift: float) -> Tensor:
    """H + shift·I with the rows and columns of inputs that were always zero cut out, 1 on their diagonal; a copy.

    Args:
        hessian: H, float64 [in, in], symmetric.
        shift: What is added to its diagonal.
    """
    damped = hessian.clone()
    dead = damped.diagonal() == 0
    if dead.any():
        damped.masked_fill_(dead, 0).masked_fill_(dead.unsqueeze(-1), 0)
    damped.diagonal().add_(shift).masked_fill_(dead, 1.0)
    return damped


def descend(
    target: Tensor,
    tensor: QuantizedTensor,
    hessian: Tensor,
    columns: Tensor,
    cycles: int,
    *,
    scales: bool = True,
    factors: tuple[Tensor, Tensor] | None = None,
) -> QuantizedTensor:
    """Codes and scales with tr((W − Ŵ) A (W − Ŵ)ᵀ) no larger than before, in any row (arXiv 2505.07004, LNQ).

    A cycle takes each weight of a row once, in the order of ``columns``, and gives it the code that is best while all
    others are held (:func:`descend_codes`), then each scale (:func:`fit_scales`). Each is the exact minimum in one
    variable, so the error falls until nothing moves. A row that a cycle does not improve keeps what it has: its
    values are rounded once more where they are stored in 16 bits, which the minimum does not know.

    Args:
        target: W, float [out, in]; for GPTAQ W'.
        tensor: Where to begin.
        hessian: A, the damped Hessian, float64 [in, in], positive on its diagonal.
        columns: In which order columns are taken, int64 [in].
        cycles: How many cycles at most; none is made after one that moved nothing.
        scales: Whether scales move, where their grid leaves each row its own.
        factors: :func:`sweep_factors` of A, where they are known.
    """
    if cycles < 1:
        return tensor
    factor, lower = factors or sweep_factors(hessian, columns)
    errors = row_errors(target, tensor, hessian)
    for _ in range(cycles):
        before = errors
        for fitted in (True, False):
            if fitted and not (scales and has_own_scales(tensor.grid)):
                continue
            tried = (
                fit_scales(target, tensor, hessian) if fitted else descend_codes(target, tensor, factor, lower, columns)
            )
            found = row_errors(target, tried, hessian)
            tensor = better_rows(tensor, tried, found < errors)
            errors = torch.minimum(found, errors)
        if not bool((errors < before).any()):
            break
    return tensor


def descend_codes(
    target: Tensor, tensor: QuantizedTensor, factor: Tensor, lower: Tensor, columns: Tensor
) -> QuantizedTensor:
    """One cycle of cyclic coordinate descent on the codes of every row.

    With A = L + D + Lᵀ in the order of the columns and Δ = Ŵ − W before the cycle, column k is to be rounded to the
    value nearest to v_k = w_k − (Σ_{j<k} A_kj (q_j − w_j) + Σ_{j>k} A_kj Δ_j) / A_kk. Written with the errors
    e = v − q, that is the column loop of GPTQ: v_k = c_k − Σ_{j<k} e_j F_jk for F = D (D + Lᵀ)⁻¹ and
    c = w − Δ L D⁻¹ F, the step of Gauss and Seidel from Ŵ. So :func:`solve_columns` does it, with F for its factor.

    Args:
        target: W, float [out, in].
        tensor: Ŵ.
        factor: F, float64 [in, in], upper, with ones on its diagonal, in the order of the columns.
        lower: L D⁻¹, float64 [in, in].
        columns: That order, int64 [in].
    """
    start = torch.empty(target.shape, dtype=torch.float64, device=target.device)
    for part in row_chunks(target, copies=4):
        delta = tensor.rows(part).dequantize().double() - target[part]
        wanted = target[part].to(torch.float64, copy=True)
        wanted[:, columns] -= delta[:, columns] @ lower @ factor
        start[part] = wanted
    return replace(tensor, codes=solve_columns(start, factor, columns, tensor).codes)


def fit_scales(target: Tensor, tensor: QuantizedTensor, hessian: Tensor) -> QuantizedTensor:
    """Every scale of every row at its best while codes and the other scales are held, one group after the other.

    With u the values of a group's codes and E = (Ŵ − W) A, the error is least at s − ⟨E, u⟩ / (u A u). The storable
    scale nearest to that is the best of those that can be stored, for the error is a parabola in s.

    Args:
        target: W, float [out, in].
        tensor: Ŵ; every row has scales of its own.
        hessian: A, float64 [in, in].
    """
    width = tensor.grid.group_width(tensor.in_features)
    scale = tensor.scale.clone()
    for part in row_chunks(target, copies=8):
        rows = tensor.rows(part)
        steps = rows.steps().double()
        values = _values(rows)
        own = rows.scale.clone()
        gradient = (rows.dequantize().double() - target[part]) @ hessian
        for group in range(steps.shape[-1]):
            here = slice(group * width, (group + 1) * width)
            product = values[:, here] @ hessian[here]  # [rows, in]
            curvature = (product[:, here] * values[:, here]).sum(-1)
            slope = (gradient[:, here] * values[:, here]).sum(-1)
            wanted = steps[:, group] - slope / curvature.clamp(min=torch.finfo(torch.float64).tiny)
            stored = _storable(wanted, rows, own[:, group])
            moved = (curvature > 0) & (wanted > 0)
            own[:, group] = torch.where(moved, stored, own[:, group])
            after = replace(rows, scale=own).steps()[:, group].double()
            gradient.addcmul_(product, (after - steps[:, group]).unsqueeze(-1))
            steps[:, group] = after
        scale[part] = own
    return replace(tensor, scale=scale)


def has_own_scales(grid: Grid) -> bool:
    """Whether each row has scales of its own that may move one by one."""
    return grid.superblock is None and not grid.rows_share_scales


def _values(tensor: QuantizedTensor) -> Tensor:
    """What codes stand for in units of their steps, float64 [out, in]."""
    element = tensor.grid.float_element
    if element is not None:
        return element.numbers(tensor.codes, torch.float64)
    values = tensor.codes.double()
    if tensor.zero is None:
        return values.sub_(tensor.grid.midpoint)
    zero = tensor.zero.double()
    width = tensor.grid.group_width(tensor.in_features)
    return values.sub_(zero if zero.shape[-1] == 1 else zero.repeat_interleave(width, dim=-1))


def _storable(steps: Tensor, tensor: QuantizedTensor, scale: Tensor) -> Tensor:
    """The scales nearest to wanted steps, float64 [rows], among those that the grid can store; in the scale's dtype.

    Where nothing near can be stored, the scale as it is.
    """
    grid, dtype = tensor.grid, scale.dtype
    if grid.scale == POWERS_OF_TWO:
        mantissa, exponent = torch.frexp(steps.clamp(min=2.0**-100, max=2.0**100))  # steps = mantissa · 2^exponent
        power = torch.where(mantissa < 0.75, exponent - 1, exponent)
        wanted = torch.ldexp(torch.ones_like(steps), power).to(dtype)
    elif tensor.global_scale is not None:
        local = (steps * tensor.global_scale.double().reshape(-1)).clamp(max=_FLOAT8_LARGEST)
        wanted = local.float().to(_FLOAT8).to(dtype)
    else:
        wanted = steps.to(dtype)
    return torch.where(torch.isfinite(wanted) & (wanted > 0), wanted, scale)


def sweep_factors(hessian: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """F = D (D + Lᵀ)⁻¹ and L D⁻¹ of A in the order of the columns; see :func:`descend_codes`."""
    ordered = torch.empty_like(hessian)
    for start in range(0, len(columns), _BLOCK):
        ordered[start : start + _BLOCK] = hessian[columns[start : start + _BLOCK]][:, columns]
    diagonal = ordered.diagonal().clone()
    lower = ordered.tril(-1).div_(diagonal)
    invert_upper(ordered)
    return ordered.triu_().mul_(diagonal.unsqueeze(-1)), lower
