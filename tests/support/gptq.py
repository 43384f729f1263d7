"""GPTQ computed slowly, and inputs to compute it on."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor


def grid_of(bits: int = 4, symmetric: bool = True, size: int | None = 16) -> Grid:
    return Grid(bits=bits, symmetric=symmetric, granularity="group" if size else "channel", group_size=size)


def correlated(tokens: int = 512, features: int = 64) -> Tensor:
    """Inputs that a few directions explain, channels of different size; float64."""
    mix = torch.randn(features // 4, features, dtype=torch.float64)
    x = torch.randn(tokens, features // 4, dtype=torch.float64) @ mix
    x += 0.3 * torch.randn(tokens, features, dtype=torch.float64)
    return x * torch.logspace(-1, 1, features, dtype=torch.float64)[torch.randperm(features)]


def hessian_of(x: Tensor) -> Tensor:
    h = 2 * x.T @ x / len(x)
    return (h + h.T) / 2


def eliminate_slowly(weight: Tensor, hessian: Tensor, order: list[int], ranges: QuantizedTensor) -> Tensor:
    """Optimal Brain Quantization with a fixed order: the inverse Hessian of what remains is computed anew at each step.

    For column j: w_F −= (w_j − q_j) / [H_F⁻¹]_jj · [H_F⁻¹]_j,F over the columns F not yet rounded.
    """
    work = weight.float().double().clone()
    codes = torch.zeros(weight.shape, dtype=torch.uint8)
    grid = ranges.grid
    width = grid.group_width(weight.shape[1])
    left = list(order)
    while left:
        j = left[0]
        inverse = torch.linalg.inv(hessian[left][:, left])
        for row in range(len(weight)):
            scale = ranges.scale[row, j // width]
            zero = grid.midpoint if ranges.zero is None else float(ranges.zero[row, j // width])
            code = min(max(round(float(work[row, j].float() / scale.float()) + zero), 0), grid.code_max)
            codes[row, j] = code
            error = (work[row, j] - (code - zero) * scale.double()) / inverse[0, 0]
            work[row, left] -= error * inverse[0]
        left.pop(0)
    return codes
