"""ggml's quantizers of small blocks: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4 and NVFP4."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.algorithms.ggml.fits import WEIGHTED, fit_affine, fit_symmetric, fit_table
from goldstick.algorithms.ggml.plain_fits import counts_of, nearest_entry, root, sum_of_squares
from goldstick.core.grid import BLOCK, Grid
from goldstick.core.minimums import scales_with_zeros
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import NUMBER_FORMATS
from goldstick.errors import QuantizationError

_MXFP4 = NUMBER_FORMATS["mxfp4a16"][0]
_NVFP4 = NUMBER_FORMATS["nvfp4a16"][0]
#: The least normal number of E4M3, and the step of those below it.
_E4M3_NORMAL, _E4M3_STEP = 2.0**-6, 2.0**-9
_E4M3_LARGEST, _E4M3_LAST_BINADE = 448.0, 256.0


def is_block(grid: Grid) -> bool:
    """Whether ggml has a block type of that grid: groups of 32, MXFP4, NVFP4, or superblocks."""
    return (
        grid in (_MXFP4, _NVFP4)
        or grid.superblock is not None
        or (grid.group_size == BLOCK and grid.scale is None and grid.granularity == "group")
    )


def quantize_blocks(
    rows: Tensor, grid: Grid, importance: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> QuantizedTensor:
    """Rows rounded in groups of 32 (NVFP4: 16) as ggml's quantizer of that type rounds them, with float16 scales.

    Those of a bfloat16 layer are rounded to bfloat16 first, in which it computes: its blocks have other scales than
    ggml's, by up to 0.2 %.

    Plain, a symmetric block has the scale v / −2^(bits−1), v being its value of largest magnitude (8 bits:
    max|w| / 127), and an asymmetric one (max − min) / (2^bits − 1). With an importance both are fitted, with errors
    weighted by importance · √(σ² + w²), where σ² is the mean square of the row. MXFP4 has the scale
    2^(⌊log₂ max|w|⌋ − 2), and NVFP4 max|w| / 6 rounded to E4M3, ties away from 0 and what would be less than 2⁻⁹ to 0,
    with a scale of scales of 1; from 256 on, of weights above 1536, ggml takes the largest E4M3 number.

    Args:
        rows: float32 [rows, in], finite.
        grid: Groups of 32, of integers, of an unsigned table or of FP4 with scales that are powers of two; or NVFP4.
        importance: float32 [in], what the error of each column counts, or ``None``. Q8_0, MXFP4 and NVFP4 do not look
            at it.
        dtype: What scales are kept in.

    Raises:
        QuantizationError: The group size is not 32, or a scale does not fit float16.
    """
    if grid == _MXFP4:
        return _powers_of_two(rows.reshape(len(rows), -1, BLOCK), grid, dtype)
    if grid == _NVFP4:
        return _scaled_scales(rows.reshape(len(rows), -1, grid.group_width(rows.shape[-1])), grid, dtype)
    if not is_block(grid):
        raise QuantizationError(f"ggml's blocks are of {BLOCK} weights; it has none of {grid.label}.")
    blocks = rows.reshape(len(rows), -1, BLOCK)
    if grid.float_element is not None:
        return _table(blocks, importance, grid, dtype)
    if importance is not None and grid.bits != 8:
        weight = counts_of(importance, BLOCK) * root(
            (sum_of_squares(rows) / rows.shape[-1])[:, None, None] + blocks * blocks
        )
        return _fitted(blocks, weight, grid, dtype)
    return _plain_symmetric(blocks, grid, dtype) if grid.symmetric else _plain_affine(blocks, grid, dtype)


def _powers_of_two(blocks: Tensor, grid: Grid, dtype: torch.dtype) -> QuantizedTensor:
    largest = blocks.abs().amax(-1)
    exponent = largest.double().log2().float().floor() - 2  # ⌊log2f⌋: what is just below a power of two counts as one
    least = -24 if dtype == torch.float16 else -127
    exponent = torch.where(largest == 0, least, exponent.clamp(min=least))
    scale = torch.ldexp(torch.ones_like(largest), exponent)
    codes = _nearest_codes(blocks, scale, grid)
    return QuantizedTensor(codes=codes.flatten(1), scale=scale.to(dtype), zero=None, grid=grid)


def _scaled_scales(blocks: Tensor, grid: Grid, dtype: torch.dtype) -> QuantizedTensor:
    wanted = blocks.abs().amax(-1)
    wanted = wanted / torch.full_like(wanted, grid.steps_to_end)
    # Four bits of the mantissa, ties away from 0: ⌊m + ½⌋ of a float32 of 24 bits is exact.
    mantissa, exponent = torch.frexp(wanted)
    normal = torch.ldexp((mantissa * 16 + 0.5).floor(), exponent - 4)
    below = (wanted / _E4M3_STEP + 0.5).floor().clamp(max=7) * _E4M3_STEP  # 7.5 steps are no normal number
    normal = torch.where(normal >= _E4M3_LAST_BINADE, _E4M3_LARGEST, normal)
    scale = torch.where(wanted < _E4M3_NORMAL, below, normal)
    codes, one = _nearest_codes(blocks, scale, grid), torch.ones(1, 1, dtype=scale.dtype, device=scale.device)
    return QuantizedTensor(codes=codes.flatten(1), scale=scale.to(dtype), zero=None, grid=grid, global_scale=one)


def _nearest_codes(blocks: Tensor, scale: Tensor, grid: Grid) -> Tensor:
    """Of numbers that are as near as each other that of the least code."""
    element = grid.float_element
    assert element is not None
    best, codes = torch.full_like(blocks, torch.inf), torch.zeros_like(blocks, dtype=torch.uint8)
    for code, value in enumerate(element.table().tolist()):
        error = (value * scale.unsqueeze(-1) - blocks).abs_()
        better = error < best
        best, codes = torch.where(better, error, best), codes.masked_fill_(better, code)
    return codes


def _plain_symmetric(blocks: Tensor, grid: Grid, dtype: torch.dtype) -> QuantizedTensor:
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)).squeeze(-1) + 0.0  # no −0
    most = grid.midpoint
    if grid.bits == 8:
        scale = largest.abs() / torch.full_like(largest, most - 1)
    else:
        scale = largest / torch.full_like(largest, -most)
    ratio = blocks * torch.where(scale == 0, 0.0, 1 / scale).unsqueeze(-1)
    if grid.bits == 8:  # half away from zero
        whole = ratio.trunc()
        codes = whole + torch.where((ratio - whole).abs() >= 0.5, ratio.sign(), 0.0) + most
    else:
        codes = (ratio + (most + 0.5)).trunc().clamp(0, grid.code_max)
    return _stored(codes, scale, None, grid, dtype)


def _plain_affine(blocks: Tensor, grid: Grid, dtype: torch.dtype) -> QuantizedTensor:
    places = torch.arange(BLOCK, device=blocks.device)
    first = torch.where(blocks == blocks.amin(-1, keepdim=True), places, BLOCK).amin(-1, keepdim=True)
    low = blocks.gather(-1, first).squeeze(-1)  # of 0 and −0 the one that comes first
    span = blocks.amax(-1) - low + 0.0  # no −0
    scale = span / torch.full_like(span, grid.code_max)
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    codes = ((blocks - low.unsqueeze(-1)) * inverse.unsqueeze(-1) + 0.5).trunc().clamp(0, grid.code_max)
    return _stored(codes, scale, low, grid, dtype)


def _fitted(blocks: Tensor, weight: Tensor, grid: Grid, dtype: torch.dtype) -> QuantizedTensor:
    minimum = None
    if grid.symmetric:
        scale, codes = fit_symmetric(blocks.flatten(0, 1), weight.flatten(0, 1), grid.midpoint)
    else:
        scale, minimum, codes = fit_affine(blocks.flatten(0, 1), weight.flatten(0, 1), grid.code_max, WEIGHTED)
        minimum = -minimum.reshape(blocks.shape[:2])
    return _stored(codes.reshape(blocks.shape), scale.reshape(blocks.shape[:2]), minimum, grid, dtype)


def _table(blocks: Tensor, importance: Tensor | None, grid: Grid, dtype: torch.dtype) -> QuantizedTensor:
    element = grid.float_element
    assert element is not None
    weight = blocks * blocks
    if importance is not None:
        weight = counts_of(importance, BLOCK) * root((sum_of_squares(blocks) * (2 / BLOCK)).unsqueeze(-1) + weight)
    scale = fit_table(blocks.flatten(0, 1), weight.flatten(0, 1), element).reshape(blocks.shape[:2])
    # The codes are those of the scale before it is rounded to float16, and of its reciprocal.
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    return _stored(nearest_entry(inverse.unsqueeze(-1) * blocks, element), scale, None, grid, dtype)


def _stored(codes: Tensor, scale: Tensor, minimum: Tensor | None, grid: Grid, dtype: torch.dtype) -> QuantizedTensor:
    half, zero = scale.to(dtype).to(torch.float16), None
    if not bool(half.isfinite().all()):
        raise QuantizationError(
            f"A scale of {float(scale.abs().max()):.3g} does not fit float16. Scale the weights down, or use another "
            "scheme."
        )
    codes = codes.to(torch.uint8)
    if minimum is not None:
        half, zero, constant = scales_with_zeros(half, minimum.to(torch.float16))
        codes = codes.masked_fill(constant.unsqueeze(-1), 0)
    return QuantizedTensor(codes=codes.flatten(-2), scale=half.to(dtype), zero=zero, grid=grid)
