"""GPTQ's column loop of one block: a program holds some rows in registers and goes through their columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from goldstick.core.element import ELEMENTS, INTEGER
from goldstick.kernels.triton.numbers import clamped, places, ratios, whole
from goldstick.kernels.triton.tiles import rounded

_TILE_ROWS = 16


@triton.jit
def _solve(
    weight,
    factor,
    steps,
    zero,
    group,
    edges,
    table,
    codes,
    errors,
    row_count,
    width,
    groups,
    edge_count,
    bits: tl.constexpr,
    dtype: tl.constexpr,
    has_zero: tl.constexpr,
    minimums: tl.constexpr,
    has_table: tl.constexpr,
    sign_bit: tl.constexpr,
    keeps_zero_sign: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
):
    rows = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    columns = tl.arange(0, tile_columns)
    here = rows < row_count
    inside = here[:, None] & (columns < width)[None, :]
    at = rows[:, None].to(tl.int64) * width + columns[None, :]
    work = tl.load(weight + at, mask=inside, other=0)  # of columns that are done the errors
    found = tl.zeros((tile_rows, tile_columns), tl.int32)
    middle: tl.constexpr = 1 << (bits - 1)
    largest: tl.constexpr = (1 << bits) - 1
    for j in range(width):
        chosen = (columns == j)[None, :]
        # As whole numbers, so that the sign of a zero stays.
        taken = tl.sum(tl.where(chosen, work.to(tl.int64, bitcast=True), 0), axis=1)
        column = taken.to(tl.float64, bitcast=True)
        value = column.to(tl.float32)
        scales = rows.to(tl.int64) * groups + tl.load(group + j)
        step = tl.load(steps + scales, mask=here, other=1)
        shift = tl.load(zero + scales, mask=here, other=0) if has_zero else tl.full((tile_rows,), middle, tl.float32)
        if has_table:
            code = places(ratios(value, step), edges, edge_count, sign_bit, keeps_zero_sign)
            number = rounded(tl.load(table + code) * step, dtype).to(tl.float32)
        elif minimums:
            level = whole(clamped(ratios(value + shift, step), 0.0, largest * 1.0))
            code = level.to(tl.int32)
            number = level * step - shift
        else:
            ratio = ratios(value, step) + (shift - middle)
            level = whole(clamped(ratio, -middle * 1.0, (largest - middle) * 1.0)) + middle
            code = level.to(tl.int32)
            centred = rounded(level - rounded(shift, dtype).to(tl.float32), dtype).to(tl.float32)
            number = rounded(centred * step, dtype).to(tl.float32)
        row = factor + j * width
        error = (column - number.to(tl.float64)) / tl.load(row + j)
        spread = tl.load(row + columns, mask=columns < width, other=0)[None, :] * error[:, None]
        work = tl.where((columns > j)[None, :], work - spread, tl.where(chosen, error[:, None], work))
        found = tl.where(chosen, code[:, None], found)
    tl.store(codes + at, found.to(tl.uint8), mask=inside)
    tl.store(errors + at, work, mask=inside)


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
) -> tuple[Tensor, Tensor]:
    """Codes uint8 and errors float64 [rows, width], as ``algorithms/column_loop.py`` computes them, bit for bit.

    The arguments are those of the operator, which are those of that function.
    """
    codes = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    errors = torch.empty(weight.shape, dtype=torch.float64, device=weight.device)
    table = ELEMENTS.get(element)
    scales = steps.float().contiguous()
    edges = scales if table is None else table.edges(weight.device)
    if weight.numel():
        _solve[(triton.cdiv(len(weight), _TILE_ROWS),)](
            weight.contiguous(),
            factor.contiguous(),
            scales,
            scales if zero is None else zero.float().contiguous(),
            group.to(weight.device).contiguous(),
            edges,
            scales if table is None else table.table(weight.device),
            codes,
            errors,
            *weight.shape,
            steps.shape[-1],
            0 if table is None else len(edges),
            bits=bits,
            dtype=getattr(tl, dtype or str(steps.dtype).removeprefix("torch.")),
            has_zero=zero is not None,
            minimums=minimums and zero is not None,
            has_table=table is not None,
            sign_bit=1 << (bits - 1) if table is not None and table.signed else 0,
            keeps_zero_sign=table is not None and table.keeps_zero_sign,
            tile_rows=_TILE_ROWS,
            tile_columns=triton.next_power_of_2(weight.shape[1]),
            enable_fp_fusion=False,  # a product is rounded before it is subtracted, as in torch
        )
    return codes, errors
