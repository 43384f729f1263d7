"""ggml's quantizers of K-quants and IQ4: weights by superblock to codes, scales, minimums and the scales of these."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from goldstick.algorithms.ggml.fits import (
    WEIGHTED,
    AffineSearch,
    fit_affine,
    fit_by_changes,
    fit_positive,
    fit_symmetric,
    fit_table,
)
from goldstick.algorithms.ggml.plain_fits import LEAST, counts_of, nearest_entry, root, sum_of, sum_of_squares
from goldstick.core.element import Element
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor, codes_on_grid
from goldstick.errors import QuantizationError

#: Steps tried for codes of so many bits, where no importance is known.
_PLAIN = {
    2: AffineSearch(start=-0.5, step=0.1, tries=15, absolute=True),
    4: AffineSearch(start=-1.0, step=0.1, tries=20),
    5: AffineSearch(start=-0.5, step=0.1, tries=15),
}


def quantize_superblocks(
    rows: Tensor, grid: Grid, importance: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> QuantizedTensor:
    """Rows rounded to a grid of superblocks, as ggml's quantizer of that type rounds them.

    A group's scale (and minimum) is fitted with errors weighted by w² or |w|, or by importance · √(σ² + w²), where σ²
    is the mean square of the superblock (twice that but for 2 bits); the scales of a superblock are then rounded to
    integers times a float16 number, and the codes are found again for what is stored.

    Args:
        rows: float32 [rows, in], finite.
        grid: A grid with superblocks.
        importance: float32 [in], what the error of each column counts, or ``None``.
        dtype: What the integers of the scales are kept in.

    Raises:
        QuantizationError: The scale of a superblock does not fit float16.
    """
    assert grid.superblock is not None and grid.group_size is not None
    blocks = rows.reshape(-1, grid.superblock // grid.group_size, grid.group_size)  # [superblocks, groups, width]
    weight = None if importance is None else _weights(blocks, rows, grid, importance)
    if grid.minimums:
        codes, scales, scale = _affine(blocks, weight, grid)
    elif grid.float_element is not None:
        codes, scales, scale = _table(blocks, weight, grid.float_element)
    else:
        codes, scales, scale = _symmetric(blocks, weight, grid)
    if not bool(scale.isfinite().all()):
        raise QuantizationError(
            f"A scale of superblocks does not fit float16: weights reach {float(rows.abs().max()):.3g}. Scale them "
            "down, or use another scheme."
        )
    planes = scales.reshape(len(scales), len(rows), -1).to(dtype)  # [1 or 2, rows, groups]
    found = QuantizedTensor(
        codes=codes.reshape(rows.shape),
        scale=planes[0].contiguous(),
        zero=planes[1].float().contiguous() if grid.minimums else None,
        grid=grid,
        global_scale=scale.reshape(len(scale), len(rows), -1).transpose(0, 1).contiguous(),
    )
    return found if grid.float_element is not None else _rounded_again(rows, found)


def _rounded_again(rows: Tensor, found: QuantizedTensor) -> QuantizedTensor:
    """Codes for the stored scales; those of the fit where a group has the scale 0."""
    steps, grouped = found.steps(), rows.reshape(len(rows), -1, found.grid.group_size or 1)
    codes = codes_on_grid(grouped, steps, found.shifts(), found.grid).to(torch.uint8)
    none = steps.unsqueeze(-1) == 0
    if bool(none.any()):  # steps are few, so looking costs less than another pass over the codes
        codes = torch.where(none, found.codes.reshape(codes.shape), codes)
    return replace(found, codes=codes.flatten(-2))


def _weights(blocks: Tensor, rows: Tensor, grid: Grid, importance: Tensor) -> Tensor:
    """What errors count, float32 [superblocks, groups, width]; all alike in groups where nothing does."""
    shape = -1, *blocks.shape[1:]
    counts = counts_of(importance, shape[-1]).reshape(shape)
    if grid.integers and grid.bits == 6:
        return counts.repeat(len(rows), 1, 1)
    square = sum_of_squares(blocks.flatten(-2))
    if grid.bits == 2:
        square = square / blocks[0].numel()
    elif grid.integers:
        square = 2 * square / blocks[0].numel()
    else:
        square = square * (2 / blocks[0].numel())
    size = root(square[:, None, None] + blocks * blocks)
    return (counts * size.reshape(len(rows), *shape)).reshape(blocks.shape)


def _affine(blocks: Tensor, weight: Tensor | None, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
    plain = weight is None
    if weight is None:
        weight = blocks.abs()
        if grid.bits > 2:
            weight = root(sum_of_squares(blocks) / blocks.shape[-1]).unsqueeze(-1) + weight
    search = _PLAIN[grid.bits] if plain else WEIGHTED
    scales, minimums, codes = fit_affine(blocks.flatten(0, 1), weight.flatten(0, 1), grid.code_max, search)
    assert grid.scale is not None
    found = [
        _by_largest(part, grid.scale.code_max) if plain else _by_fit(part, weight, grid.scale.code_max)
        for part in (scales.reshape(blocks.shape[:2]), minimums.reshape(blocks.shape[:2]))
    ]
    return codes, torch.stack([codes for codes, _ in found]), torch.stack([step for _, step in found])


def _by_largest(values: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Integers 0 … most, float32 [superblocks, groups], and the largest over ``most``, a float16 number."""
    largest = values.amax(-1).clamp(min=0)
    inverse = torch.where(largest > 0, torch.full_like(largest, most) / largest, 0.0)
    codes = (inverse.unsqueeze(-1) * values).round().clamp(0, most)
    return codes, _half(torch.where(largest > 0, largest / torch.full_like(largest, most), 0.0))


def _by_fit(values: Tensor, weight: Tensor, most: int) -> tuple[Tensor, Tensor]:
    scale, codes = fit_positive(values, sum_of(weight), most)
    return codes.float(), _half(scale)


def _symmetric(blocks: Tensor, weight: Tensor | None, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
    x, half, scale = blocks.flatten(0, 1), grid.midpoint, grid.scale
    assert scale is not None
    if weight is None and grid.bits == 3:
        found, codes = fit_by_changes(x, half)
    else:
        found, codes = fit_symmetric(x, x * x if weight is None else weight.flatten(0, 1), half)
    scales = found.reshape(blocks.shape[:2])
    if weight is not None and grid.bits == 3:
        step, integers = fit_symmetric(scales, sum_of(weight), scale.midpoint)
        signed = integers.float() - scale.midpoint
        return codes, signed.unsqueeze(0), _half(step).unsqueeze(0)
    place = scales.abs().argmax(-1, keepdim=True)
    largest = scales.gather(-1, place).squeeze(-1)
    none = largest == 0 if grid.bits == 3 else largest.abs() < LEAST
    inverse = torch.full_like(largest, -scale.midpoint) / largest
    signed = (inverse.unsqueeze(-1) * scales).round().clamp(-scale.midpoint, scale.midpoint - 1)
    # A superblock of zeros is all bits 0 in the file: six-bit scales are stored with their middle added.
    empty = -scale.midpoint if grid.bits == 3 else 0
    signed = torch.where(none.unsqueeze(-1), float(empty), signed)
    codes = codes.reshape(blocks.shape)
    if grid.bits == 6 and bool(none.any()):
        codes = codes.masked_fill(none[:, None, None], 0)
    return codes, signed.unsqueeze(0), _half(torch.where(none, 0.0, 1 / inverse)).unsqueeze(0)


def _table(blocks: Tensor, weight: Tensor | None, element: Element) -> tuple[Tensor, Tensor, Tensor]:
    x = blocks.flatten(0, 1)
    scales = fit_table(x, x * x if weight is None else weight.flatten(0, 1), element).reshape(blocks.shape[:2])
    largest = scales.gather(-1, scales.abs().argmax(-1, keepdim=True)).squeeze(-1)
    step = -largest / torch.full_like(largest, 32)
    inverse = torch.where(step == 0, 0.0, 1 / step)
    signed = (inverse.unsqueeze(-1) * scales).round().clamp(-32, 31)
    # The codes are those of the scale before it is rounded to float16, and of its reciprocal.
    group_step = step.unsqueeze(-1) * signed
    reciprocal = torch.where(group_step == 0, 0.0, 1 / group_step)
    codes = nearest_entry(reciprocal.unsqueeze(-1) * blocks, element).to(torch.uint8)
    return codes, signed.unsqueeze(0), _half(step).unsqueeze(0)


def _half(values: Tensor) -> Tensor:
    return values.to(torch.float16).float()
