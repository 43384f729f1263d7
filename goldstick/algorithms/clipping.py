"""Clipping: ranges shrunken where that lowers the error of a layer's output, and the best of several roundings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from goldstick.algorithms.output_error import row_errors
from goldstick.algorithms.ranges import Range, ScaleDtype, quantize_with_ranges, quantize_with_search, shrunken
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor, in_groups

#: What the ends of a range are multiplied by.
RATIOS = tuple(1 - step / 20 for step in range(10))

_WIDEST_BLOCK = 512


def clipped(
    weight: Tensor, hessian: Tensor, rows: Tensor, grid: Grid, largest: Tensor | None = None
) -> QuantizedTensor:
    """Round with the ranges, shrunken to 55 % at most, whose error of the output is least, each group for itself.

    For every row and group: the ratio 1 − i/20, i < 10, of least Σ_x (x_g·ŵ_g − x_g·w_g)². Groups of at most 512 take
    the sum over all inputs, from their block of H; wider ones over the sampled ones.

    Args:
        weight: float [out, in].
        hessian: H, float64 [in, in].
        rows: Sampled inputs, float [k, in].
        grid: What the codes live on.
        largest: As in :func:`quantize_with_search`.
    """
    if grid.rows_share_scales:  # no group of columns has an error of its own
        return quantize_with_search(weight, grid, "mse", largest=largest)
    width = grid.group_width(weight.shape[-1])
    if width <= _WIDEST_BLOCK:
        starts = range(0, len(hessian), width)
        blocks = torch.stack([hessian[start : start + width, start : start + width] for start in starts])

        def error(delta: Tensor) -> Tensor:
            own = delta.double().transpose(0, 1)  # [groups, rows, width]
            return (own @ blocks * own).sum(-1).T.float()

    else:
        inputs = in_groups(rows.double(), grid).permute(1, 2, 0).to(weight.device)  # [groups, width, k]

        def error(delta: Tensor) -> Tensor:
            return (delta.double().transpose(0, 1) @ inputs).square_().sum(-1).T.float()

    def search(grouped: Tensor, grid: Grid, kept: ScaleDtype) -> Range:
        return shrunken(grouped, grid, kept, RATIOS, error)

    return quantize_with_ranges(weight, grid, search, largest=largest)


def best_rows(weight: Tensor, rivals: Sequence[QuantizedTensor], hessian: Tensor) -> tuple[QuantizedTensor, Tensor]:
    """Every row from the rival that gives its output the least error, the first of equals; and which that was.

    Args:
        weight: float [out, in].
        rivals: Codes on one grid.
        hessian: H, float64 [in, in].

    Returns:
        The codes, and the place of each row's rival, int64 [out].
    """
    grid = rivals[0].grid
    errors = torch.stack([row_errors(weight, rival, hessian) for rival in rivals])  # [rivals, out]
    if grid.rows_share_scales:  # rows that share their scales are taken together
        tall = grid.group_size or len(weight)
        errors = torch.nn.functional.pad(errors, (0, -len(weight) % tall)).reshape(len(rivals), -1, tall).sum(-1)
        errors = errors.repeat_interleave(tall, dim=-1)[:, : len(weight)]
    chosen = errors.argmin(0)
    rows = torch.arange(len(weight), device=weight.device)
    zeros = [rival.zero for rival in rivals if rival.zero is not None]
    tensor = QuantizedTensor(
        codes=torch.stack([rival.codes for rival in rivals])[chosen, rows],
        scale=torch.stack([rival.scale for rival in rivals])[chosen, rows],
        zero=torch.stack(zeros)[chosen, rows] if zeros else None,
        grid=grid,
        global_scale=rivals[0].global_scale,
    )
    return tensor, chosen
