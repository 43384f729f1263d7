"""GPTQ computed slowly, and inputs to compute it on."""

from __future__ import annotations

import math
from dataclasses import replace

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


def descended_slowly(weight: Tensor, tensor: QuantizedTensor, hessian: Tensor, columns: list[int]) -> Tensor:
    """Every code tried at every column, one after the other, by the whole error of the row."""
    codes = tensor.codes.clone()
    for row in range(len(codes)):
        for column in columns:
            errors = []
            for code in range(tensor.grid.code_max + 1):
                tried = codes[row].clone()
                tried[column] = code
                delta = replace(tensor.rows(slice(row, row + 1)), codes=tried.unsqueeze(0)).dequantize() - weight[row]
                errors.append(float(delta.double() @ hessian @ delta.double().T))
            codes[row, column] = min(range(len(errors)), key=errors.__getitem__)
    return codes


def pathologies() -> dict[str, tuple[Tensor, str | None]]:
    """Hessians, and of those that cannot be used why, as solutions say it."""
    torch.manual_seed(0)
    x = correlated(256, 32)
    nan, inf, dead, twice, huge = (hessian_of(x) for _ in range(5))
    nan[3, 4] = nan[4, 3] = math.nan
    inf[0, 0] = math.inf
    dead[5] = dead[:, 5] = 0
    twins = x.clone()
    twins[:, 7] = twins[:, 8]
    twice = hessian_of(twins)
    spiky = x.clone()
    spiky[0] *= 1e20
    huge = hessian_of(spiky)
    one = hessian_of(x[:1])
    zero = torch.zeros(32, 32, dtype=torch.float64)
    constant = hessian_of(torch.ones(100, 32, dtype=torch.float64))
    return {
        "NaN": (nan, "2 values of the Hessian are NaN or infinite"),
        "infinity": (inf, "1 values of the Hessian are NaN or infinite"),
        "zero": (zero, "the Hessian is zero"),
        "indefinite": (-torch.eye(32, dtype=torch.float64), "not positive definite, even damped by 1 "),
        "overflow": (torch.full((32, 32), 1e308, dtype=torch.float64), "not positive definite"),
        "8 tokens": (hessian_of(x[:8]), None),
        "1 token": (one, None),
        "identical columns": (twice, None),
        "all columns identical": (constant, None),
        "one dead column": (dead, None),
        "one token 1e20 times the others": (huge, None),
        "tiny": (hessian_of(x * 1e-30), None),
    }
