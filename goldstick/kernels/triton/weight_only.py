"""y = x·wᵀ + b for float inputs: codes become numbers in registers and are multiplied by tensor cores there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from goldstick.kernels.base import WeightSpec
from goldstick.kernels.triton import tuning
from goldstick.kernels.triton.dequantize import dequantize
from goldstick.kernels.triton.partial_sums import add_partial_sums
from goldstick.kernels.triton.tiles import load_for_rows, load_for_words, load_tile, output_places, rounded
from goldstick.kernels.triton.tuning import aligned, dense
from goldstick.kernels.triton.words import add_products

TILE_COLUMNS = 128
#: Up to so many tokens weights are multiplied as they are unpacked, where a tile lies in one group, and where not.
_FEW_TOKENS, _FEWER_TOKENS = 64, 16

# The interpreter multiplies numpy arrays, and numpy has no bfloat16; its values are float32 values all the same.
_PRODUCTS = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.float32 if tuning.interpreted else tl.bfloat16,
}


@triton.autotune(
    configs=tuning.CONFIGS,
    key=["row_count", "columns", "tiles_per_split", "tile_tokens", "bits", "one_group", "has_zero"],
    prune_configs_by={"early_config_prune": tuning.worth_trying},
)
@triton.jit
def _multiply(
    x,
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
    words_per_group,
    tiles_per_split,
    bits: tl.constexpr,
    has_zero: tl.constexpr,
    has_bias: tl.constexpr,
    one_group: tl.constexpr,
    product: tl.constexpr,
    tile_tokens: tl.constexpr,
    tile_columns: tl.constexpr,
    tile_rows: tl.constexpr,
):
    tile_words: tl.constexpr = tile_columns * bits // 32
    middle: tl.constexpr = 1 << (bits - 1)
    token_tiles = tl.cdiv(token_count, tile_tokens)
    place = tl.program_id(0)
    split = tl.program_id(1)
    tokens = (place % token_tiles) * tile_tokens + tl.arange(0, tile_tokens)
    rows = (place // token_tiles) * tile_rows + tl.arange(0, tile_rows)
    nothing = tl.zeros((tile_rows, tile_tokens), tl.float32)
    sums = nothing
    first = split * tiles_per_split
    for tile in range(first, tl.minimum(first + tiles_per_split, tl.cdiv(columns, tile_columns))):
        inputs = load_tile(x, tokens, tile * tile_columns, token_count, columns, tile_columns)
        word = tile * tile_words
        words = load_tile(packed, rows, word, row_count, width, tile_words)
        if one_group:  # the scale is multiplied by sums, not by weights
            group = word // words_per_group
            steps = load_for_rows(scale, rows, group, row_count, groups)
            products = add_products(nothing, words, inputs.to(product), steps, 0.0, bits, False, True, product)
            if has_zero:
                zero_shift = load_for_rows(zero, rows, group, row_count, groups) - middle
                products -= zero_shift * tl.sum(inputs.to(tl.float32), axis=1)[None, :]
            sums += products * steps
        else:
            steps = load_for_words(scale, rows, word, row_count, groups, words_per_group, tile_words)
            if has_zero:
                zeros = load_for_words(zero, rows, word, row_count, groups, words_per_group, tile_words)
            else:
                zeros = steps
            sums = add_products(sums, words, inputs.to(product), steps, zeros - middle, bits, has_zero, False, product)
    if has_bias:
        sums += tl.load(bias + rows, mask=rows < row_count, other=0).to(tl.float32)[:, None]
    places, inside = output_places(tokens, rows, token_count, row_count)
    part = split.to(tl.int64) * token_count * row_count
    tl.store(y + part + places, rounded(sums, y.dtype.element_ty), mask=inside)


def most_tokens(spec: WeightSpec) -> int:
    """Up to how many tokens it pays to unpack weights where they are multiplied (``gpu_kernels.py``, on an H200)."""
    return _FEW_TOKENS if _in_one_group(spec) else _FEWER_TOKENS


def _in_one_group(spec: WeightSpec) -> bool:
    """Whether a tile of columns lies in one group, so that scales and zeros go to its sums."""
    return spec.groups == 1 or spec.group_size % TILE_COLUMNS == 0


def linear(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None, spec: WeightSpec
) -> Tensor:
    """x·wᵀ + b, [tokens, out] for x [tokens, in]; products are summed in float32.

    Many tokens pay for weights that are written out, which torch multiplies at the peak of tensor cores.
    """
    tokens = x.shape[0]
    if spec.dtype != torch.float32 and tokens > most_tokens(spec):
        weight = dequantize(packed, scale, zero, spec).to(x.dtype)
        return torch.nn.functional.linear(x, weight, None if bias is None else bias.to(x.dtype))
    y = x.new_empty(tokens, spec.out_features)
    if y.numel() == 0:
        return y
    split_count, tiles_per_split = tuning.splits(tokens, spec, TILE_COLUMNS, x.device)
    whole = split_count == 1
    target = y if whole else x.new_empty(split_count, tokens, spec.out_features, dtype=torch.float32)
    tile_tokens = tuning.tile_tokens(tokens, x.dtype)

    def grid(chosen: dict[str, int]) -> tuple[int, int]:
        tiles = triton.cdiv(tokens, tile_tokens) * triton.cdiv(spec.out_features, chosen["tile_rows"])
        return tiles, split_count

    with tuning.launching:
        _multiply[grid](
            aligned(x),
            aligned(packed),
            dense(scale, x),
            dense(zero, x),
            dense(bias, x),
            target,
            tokens,
            spec.out_features,
            spec.in_features,
            spec.packed_width,
            spec.groups,
            tuning.words_per_group(spec),
            tiles_per_split,
            bits=spec.bits,
            has_zero=zero is not None,
            has_bias=bias is not None and whole,
            one_group=_in_one_group(spec),
            product=_PRODUCTS[spec.dtype],
            tile_tokens=tile_tokens,
            tile_columns=TILE_COLUMNS,
        )
    if not whole:
        add_partial_sums(target, bias, y)
    return y
