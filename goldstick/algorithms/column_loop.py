"""The column loop of GPTQ: round a column, spread its error over the columns that are still to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from goldstick.core.compiled import compiled
from goldstick.core.element import INTEGER
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor, codes_above_minimums, codes_on_grid
from goldstick.core.rows import row_chunks

_BLOCK = 128
#: Bits of codes up to which the processor's operator solves them: of tables, of integers.
_FUSED_BITS = (4, 8)

_BEYOND = 1.001
"""What lies further off than so many halves of the widest step was clipped."""

Block = tuple[Tensor, Tensor]  # codes uint8 [rows, width], errors float64 [rows, width]


class Columns(NamedTuple):
    """What :func:`solve_columns` found: the codes, and of each row the sum of e_j², and that of clipped columns."""

    codes: Tensor
    squares: Tensor
    clipped: Tensor


def solve_columns(weight: Tensor, factor: Tensor, order: Tensor, ranges: QuantizedTensor) -> Columns:
    """The codes of GPTQ (arXiv 2210.17323, algorithm 1) for scales and zeros that are already fixed.

    For each column j in the given order: q = Q(w_j), e = (w_j − q) / U_jj, then w_k −= e · U_jk for the columns k to
    come: at once inside a block of 128, and for the columns of a later block as one product when their turn comes.

    Rows do not meet each other. Everything but Q is float64, so that neither the number of threads nor the size of a
    product decides how a weight is rounded. Q works in float32 on the values that will be stored, exactly as rounding
    to nearest does: without errors to spread, the codes are those of RTN.

    Args:
        weight: float [out, in].
        factor: U, float64 [in, in], upper, of the Hessian in this order.
        order: int64 [in], which column comes when.
        ranges: Scales, zeros and grid, in the order of the weight.

    Returns:
        The codes, uint8 [out, in], in the order of the weight; Σ_j e_j² of each row, float64 [out]: with δ = w − ŵ it
        is δ A δᵀ, where A = (UᵀU)⁻¹ is the Hessian, damped, that U is the factor for; and the part of it that is of
        columns which lay beyond the range, further from what they became than half a step.
    """
    width = ranges.grid.group_width(weight.shape[-1])
    group = order // width
    codes = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    squares, clipped = torch.zeros((2, len(weight)), dtype=torch.float64, device=weight.device)
    half = _BEYOND / 2 * ranges.grid.widest_gap
    # What superblocks stand for is exact in float32, and what runs them may compute in it.
    kept = "float32" if ranges.grid.superblock else str(ranges.scale.dtype).removeprefix("torch.")
    solve = _fused(weight.device, ranges.grid) or solve_block
    place = order.argsort()
    for part in row_chunks(weight, copies=2):
        work = weight[part][:, order].float().double()  # [rows, in]; of columns that are done the errors
        steps = ranges.rows(part).steps()
        zero = ranges.rows(part).shifts()
        limits = half * steps.double().abs()  # steps of ggml's searches may be negative
        found = torch.empty(work.shape, dtype=torch.uint8, device=weight.device)
        for start in range(0, len(order), _BLOCK):
            here = slice(start, min(start + _BLOCK, len(order)))
            block = work[:, here]
            if start:
                block = torch.addmm(block, work[:, :start], factor[:start, here], alpha=-1)
            found[:, here], work[:, here] = solve(
                block.contiguous(),
                factor[here, here].contiguous(),
                steps,
                zero,
                group[here],
                ranges.grid.bits,
                ranges.grid.element,
                kept,
                ranges.grid.minimums,
            )
            off = work[:, here].abs().mul_(factor.diagonal()[here])
            beyond = off > limits[:, group[here]]
            clipped[part] += torch.where(beyond, work[:, here], 0.0).square_().sum(-1)
        codes[part] = found[:, place]
        squares[part] = work.square_().sum(-1)
    return Columns(codes, squares, clipped)


def solve_block(
    weight: Tensor,
    factor: Tensor,
    steps: Tensor,
    zero: Tensor | None,
    group: Tensor,
    bits: int,
    element: str = INTEGER,
    dtype: str = "",
    minimums: bool = False,
) -> Block:
    """One block of columns in plain torch; ``goldstick::gptq_block`` does the same, bit for bit.

    The value a code stands for is what :meth:`QuantizedTensor.dequantize` gives: both operations are rounded to the
    dtype of the steps, and the result to that of the scale.

    Args:
        weight: float64 [rows, width], errors of earlier blocks taken off.
        factor: The block's own part of U, float64 [width, width].
        steps: float [rows, groups], what values are multiplied by.
        zero: float [rows, groups], or ``None`` for a symmetric grid; of superblocks the minimums.
        group: int64 [width], the group of each column.
        bits: Bits of a code.
        element: What codes stand for.
        dtype: Name of the dtype of the scales, that of the steps where empty.
        minimums: Whether groups have minimums in the place of zeros.
    """
    grid = Grid(bits=bits, symmetric=zero is None, element=element)
    kept = getattr(torch, dtype) if dtype else steps.dtype
    columns = weight.T.clone(memory_format=torch.contiguous_format)  # [width, rows]: a column lies together
    codes = torch.empty(columns.shape, dtype=torch.uint8, device=weight.device)
    errors = torch.empty_like(columns)
    for j, g in enumerate(group.tolist()):
        step = steps[:, g]
        middle = None if zero is None else zero[:, g]
        column = columns[j].float().unsqueeze(-1)
        if minimums and middle is not None:
            code = codes_above_minimums(column, step, middle, grid.code_max).squeeze(-1).to(torch.uint8)
            number = code.float() * step - middle
        elif grid.float_element is not None:
            code = codes_on_grid(column, step, middle, grid).squeeze(-1).to(torch.uint8)
            number = (grid.float_element.numbers(code) * step.float()).to(kept)
        else:
            code = codes_on_grid(column, step, middle, grid).squeeze(-1).to(torch.uint8)
            number = (code.to(step.dtype) - (grid.midpoint if middle is None else middle.to(step.dtype))) * step
        errors[j] = (columns[j] - number.double()) / factor[j, j]
        codes[j] = code
        # Two kernels, not addcmul: a fused multiply-add would round once.
        columns[j + 1 :] -= factor[j, j + 1 :].unsqueeze(-1) * errors[j]
    return codes.T.contiguous(), errors.T.contiguous()


def _fused(device: torch.device, grid: Grid) -> Callable[..., Block] | None:
    """The compiled operator, where there is one for the device and the grid."""
    if device.type == "cpu" and grid.bits > _FUSED_BITS[grid.integers]:
        return None
    return compiled("gptq_block", device)
