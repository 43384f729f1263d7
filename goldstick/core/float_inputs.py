"""Inputs rounded to float elements and back: FP8, MXFP8, MXFP4 and NVFP4 activations."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.core.stored_scale import stored_scale


def fake_quantize_float(x: Tensor, grid: Grid, input_scale: Tensor | None = None) -> Tensor:
    """Round every value to the nearest number of a float element, and back: value(round(x / s)) · s.

    s is that of the token, the group of columns or the whole tensor, as weights get theirs from max|x|
    (:func:`goldstick.core.stored_scale.stored_scale`). Steps are taken in x's dtype, with a scale of scales in float32
    and rounded at the end: bit-equal to compressed-tensors' activations.

    Args:
        x: float [..., in].
        grid: The grid; its group size divides ``in``.
        input_scale: [1], where that is static: the scale, or of NVFP4 what the scales of groups are divided by.
    """
    element = grid.float_element
    assert element is not None
    if x.numel() == 0:
        return x
    if grid.granularity == "tensor":
        codes, scale = float_codes(x, grid, input_scale)
        return element.numbers(codes, x.dtype) * scale
    grouped = x.unsqueeze(-2)
    if grid.granularity == "group":
        grouped = x.reshape(*x.shape[:-1], grid.groups(x.shape[-1]), grid.group_width(x.shape[-1]))
    largest, steps = _steps(grouped, grid, input_scale)
    codes = element.round(grouped / steps)
    found = (element.numbers(codes, steps.dtype) * steps).to(x.dtype)
    return torch.where(largest.isfinite(), found, torch.nan).reshape(x.shape)


def float_codes(x: Tensor, grid: Grid, input_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The codes uint8 [tokens, in] and scales [tokens, 1] (or [1]) that ``fake_quantize_float`` makes numbers of.

    The scale of a token that holds an infinity or what is no number is not a number.

    Args:
        x: float [tokens, in].
        grid: The grid, with one scale for each token or for all.
        input_scale: [1], where that is static.
    """
    element = grid.float_element
    assert element is not None and grid.granularity in ("token", "tensor")
    if grid.granularity == "tensor":
        assert input_scale is not None
        return element.round(x / input_scale), input_scale
    if x.numel() == 0:
        return x.to(torch.uint8), x.new_ones(len(x), 1)
    largest, steps = _steps(x, grid, input_scale)
    return element.round(x / steps), torch.where(largest.isfinite(), steps, torch.nan)


def _steps(grouped: Tensor, grid: Grid, input_scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """The largest magnitude of each group of [..., groups, columns], and what its numbers are divided by."""
    largest = grouped.abs().amax(dim=-1, keepdim=True)
    # A token that holds what is no number keeps it: NaN has no power of two.
    finite = largest.nan_to_num(nan=0.0, posinf=torch.finfo(grouped.dtype).max)
    scale = stored_scale(finite, grid, grouped.dtype, input_scale)
    return largest, scale if input_scale is None else scale.float() / input_scale
