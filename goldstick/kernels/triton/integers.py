"""y = x̂·wᵀ + b for inputs rounded to 8 or 4 bits: products of integers, summed exactly in 32 bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from goldstick.core.rounded_inputs import TOKEN_BITS
from goldstick.errors import KernelError
from goldstick.kernels.base import WeightSpec
from goldstick.kernels.triton import tuning
from goldstick.kernels.triton.partial_sums import add_partial_sums
from goldstick.kernels.triton.quantize import quantize_tokens
from goldstick.kernels.triton.tiles import halves, load_for_rows, load_tile, output_places, rounded
from goldstick.kernels.triton.tuning import aligned, dense

_TILE_BYTES = {8: (128, 64, 32), 4: (64, 32)}
"""Bytes of a row in a tile, for codes of 8 and 4 bits; 32 is what tensor cores multiply of 8-bit integers at least."""

_MOST_COLUMNS = (1 << 31) // (128 * 128) - 1
"""Columns whose products of codes surely fit a sum of 32 bits."""

_TUNED_FOR = ["row_count", "columns", "tiles_per_split", "tile_tokens", "tile_columns", "bits", "whole_row", "has_zero"]


@triton.jit
def _add_products(sums, pack, inputs, bits: tl.constexpr):
    """sums + (codes − 2^(bits−1)) · inputsᵀ, int32 [rows, tokens], of bytes that hold one code or two."""
    if bits == 8:
        return tl.dot((pack ^ 128).to(tl.int8, bitcast=True), tl.trans(inputs), sums, out_dtype=tl.int32)
    else:
        even, odd = halves(inputs)
        sums = tl.dot((pack & 15).to(tl.int8) - 8, tl.trans(even), sums, out_dtype=tl.int32)
        return tl.dot((pack >> 4).to(tl.int8) - 8, tl.trans(odd), sums, out_dtype=tl.int32)


@triton.jit
def _outputs(sums, code_sums, token_scale, scale, zero, rows, tokens, row_count, token_count, middle, has_zero):
    """(Σ u·q − zero · Σ q) · (weight scale · input scale), float32 [rows, tokens], where a row has one scale."""
    here = rows < row_count
    values = sums.to(tl.float32)
    if has_zero:
        shift = tl.load(zero + rows, mask=here, other=0).to(tl.float32) - middle
        totals = tl.load(code_sums + tokens, mask=tokens < token_count, other=0).to(tl.float32)
        values -= shift[:, None] * totals[None, :]
    row_scale = tl.load(scale + rows, mask=here, other=0).to(tl.float32)
    input_scale = tl.load(token_scale + tokens, mask=tokens < token_count, other=0).to(tl.float32)
    return values * (row_scale[:, None] * input_scale[None, :])


@triton.autotune(configs=tuning.CONFIGS, key=_TUNED_FOR)
@triton.jit
def _multiply(
    x,
    token_scale,
    code_sums,
    packed,
    scale,
    zero,
    bias,
    y,
    token_count,
    row_count,
    columns,
    width,
    groups,
    group_size,
    tiles_per_split,
    bits: tl.constexpr,
    has_zero: tl.constexpr,
    has_bias: tl.constexpr,
    whole_row: tl.constexpr,
    split_rows: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_columns: tl.constexpr,
    tile_rows: tl.constexpr,
):
    tile_bytes: tl.constexpr = tile_columns * bits // 8
    token_tiles = tl.cdiv(token_count, tile_tokens)
    place = tl.program_id(0)
    split = tl.program_id(1)
    tokens = (place % token_tiles) * tile_tokens + tl.arange(0, tile_tokens)
    rows = (place // token_tiles) * tile_rows + tl.arange(0, tile_rows)
    middle: tl.constexpr = 1 << (bits - 1)
    nothing = tl.zeros((tile_rows, tile_tokens), tl.int32)
    sums = nothing if whole_row else nothing.to(tl.float32)
    first = split * tiles_per_split
    for tile in range(first, tl.minimum(first + tiles_per_split, tl.cdiv(columns, tile_columns))):
        inputs = load_tile(x, tokens, tile * tile_columns, token_count, columns, tile_columns)
        pack = load_tile(packed, rows, tile * tile_bytes, row_count, width, tile_bytes)
        if whole_row:
            sums = _add_products(sums, pack, inputs, bits)
        else:
            group = tile * tile_columns // group_size
            products = _add_products(nothing, pack, inputs, bits).to(tl.float32)
            if has_zero:
                shift = load_for_rows(zero, rows, group, row_count, groups) - middle
                products -= shift * tl.sum(inputs.to(tl.int32), axis=1).to(tl.float32)[None, :]
            sums += products * load_for_rows(scale, rows, group, row_count, groups)
    places, inside = output_places(tokens, rows, token_count, row_count)
    if split_rows and whole_row:
        values = sums
    elif whole_row:
        values = _outputs(
            sums, code_sums, token_scale, scale, zero, rows, tokens, row_count, token_count, middle, has_zero
        )
    else:
        values = sums * tl.load(token_scale + tokens, mask=tokens < token_count, other=0).to(tl.float32)[None, :]
    if has_bias and not split_rows:
        values += tl.load(bias + rows, mask=rows < row_count, other=0).to(tl.float32)[:, None]
    if split_rows:
        tl.store(y + split.to(tl.int64) * token_count * row_count + places, values, mask=inside)
    else:
        tl.store(y + places, rounded(values, y.dtype.element_ty), mask=inside)


@triton.jit
def _finish(
    partial,
    token_scale,
    code_sums,
    scale,
    zero,
    bias,
    y,
    token_count,
    row_count,
    split_count,
    middle: tl.constexpr,
    has_zero: tl.constexpr,
    has_bias: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_rows: tl.constexpr,
):
    rows = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    tokens = tl.program_id(1) * tile_tokens + tl.arange(0, tile_tokens)
    places, inside = output_places(tokens, rows, token_count, row_count)
    size = tl.cast(token_count, tl.int64) * row_count
    sums = tl.zeros((tile_rows, tile_tokens), tl.int32)
    for split in range(split_count):
        sums += tl.load(partial + split * size + places, mask=inside, other=0)
    values = _outputs(sums, code_sums, token_scale, scale, zero, rows, tokens, row_count, token_count, middle, has_zero)
    if has_bias:
        values += tl.load(bias + rows, mask=rows < row_count, other=0).to(tl.float32)[:, None]
    tl.store(y + places, rounded(values, y.dtype.element_ty), mask=inside)


def supports(spec: WeightSpec) -> bool:
    """Whether its groups can be summed in integers: whole rows (not too long), or multiples of a tile."""
    if spec.groups == 1:
        return spec.in_features <= _MOST_COLUMNS
    return _tile_columns(spec) is not None


def _tile_columns(spec: WeightSpec) -> int | None:
    """The most columns that a tile can have without reaching into a second group."""
    sizes = [count * 8 // spec.bits for count in _TILE_BYTES[spec.bits]]
    return next((size for size in sizes if spec.groups == 1 or spec.group_size % size == 0), None)


def linear(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None, spec: WeightSpec
) -> Tensor:
    """x̂·wᵀ + b, [tokens, out] for x [tokens, in], which is rounded first, as the spec says.

    Where a row has one scale, a token's result is the same bits in any batch: its sums are exact. Sums of groups are
    exact, too, and are added in float32.
    """
    tokens = x.shape[0]
    y = x.new_empty(tokens, spec.out_features)
    if y.numel() == 0:
        return y
    codes, token_scale, code_sums = quantize_tokens(x, bits=TOKEN_BITS[spec.activation or ""])
    whole_row = spec.groups == 1
    columns = _tile_columns(spec)
    if columns is None:
        raise KernelError(f"groups of {spec.group_size} codes of {spec.bits} bits fill no tile of integers")
    split_count, tiles_per_split = tuning.splits(tokens, spec, columns, x.device)
    tile_tokens = tuning.tile_tokens(tokens, codes.dtype)
    split_rows = split_count > 1
    sums_dtype = torch.int32 if whole_row else torch.float32
    target = x.new_empty(split_count, tokens, spec.out_features, dtype=sums_dtype) if split_rows else y
    weight = (dense(scale, x), dense(zero, x), dense(bias, x))
    flags = {"has_zero": zero is not None, "has_bias": bias is not None, "tile_tokens": tile_tokens}

    def grid(chosen: dict[str, int]) -> tuple[int, int]:
        tiles = triton.cdiv(tokens, tile_tokens) * triton.cdiv(spec.out_features, chosen["tile_rows"])
        return tiles, split_count

    with tuning.launching:
        _multiply[grid](
            codes,
            token_scale,
            code_sums,
            aligned(packed).view(torch.uint8),
            *weight,
            target,
            tokens,
            spec.out_features,
            spec.in_features,
            spec.packed_width * 4,
            spec.groups,
            spec.group_size,
            tiles_per_split,
            bits=spec.bits,
            whole_row=whole_row,
            split_rows=split_rows,
            tile_columns=columns,
            **flags,
        )
    if split_rows and whole_row:
        _finish[(triton.cdiv(spec.out_features, 64), triton.cdiv(tokens, tile_tokens))](
            target,
            token_scale,
            code_sums,
            *weight,
            y,
            tokens,
            spec.out_features,
            split_count,
            middle=1 << (spec.bits - 1),
            tile_rows=64,
            **flags,
        )
    elif split_rows:
        add_partial_sums(target, bias, y)
    return y
