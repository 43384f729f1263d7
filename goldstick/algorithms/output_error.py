"""How far a quantized layer's output lies from the float layer's, on the inputs of calibration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.rows import row_chunks

_COLUMN_BLOCK = 384
#: What sums of products of so many terms in float32, of numbers rounded to it, may be off, relative to the terms.
_OFF = (2 * _COLUMN_BLOCK + 8) * 2.0**-24

Rival = tuple[str, QuantizedTensor, float]
"""The name of a rounding's ranges, its codes, its output error."""
Total = Callable[[Tensor], float]
"""The sum of what float64 [rows] holds, over these rows or, where others have the rest of a matrix, over all."""


def float_sum(values: Tensor) -> float:
    """The sum of some numbers."""
    return float(values.sum())


def output_error(
    weight: Tensor,
    tensor: QuantizedTensor,
    hessian: Tensor,
    drifted: Tensor | None = None,
    total: Total = float_sum,
) -> float:
    """tr((W − Ŵ) H (W − Ŵ)ᵀ), the squared error of the layer's output summed over outputs, times 2/n; float64.

    With ``drifted`` = W D the error is measured against the float model (arXiv 2504.02692, equation 6), up to a term
    that no codes change, so it may be negative: ‖W x_fp − Ŵ x_q‖² = ‖(W − Ŵ) x_q + W (x_fp − x_q)‖² summed over the
    inputs, times 2/n, is tr((W − Ŵ) H (W − Ŵ)ᵀ) + 2 tr(W D (W − Ŵ)ᵀ) + the sum of ‖W (x_fp − x_q)‖².

    Args:
        weight: float [out, in].
        tensor: Ŵ, as it will be run: dequantized in the dtype of its scale.
        hessian: float64 [in, in], symmetric.
        drifted: W D with D = (2/n) Σ (x_fp − x_q) x_qᵀ, float64 [out, in].
        total: The sum over outputs, of which these may be a part.
    """
    return total(row_errors(weight, tensor, hessian, drifted))


def row_errors(weight: Tensor, tensor: QuantizedTensor, hessian: Tensor, drifted: Tensor | None = None) -> Tensor:
    """The output error of each output for itself, float64 [out]; see :func:`output_error`."""
    pieces = []
    for part in row_chunks(weight, copies=8):
        delta = weight[part].double() - tensor.rows(part).dequantize()
        errors = torch.zeros(len(delta), dtype=torch.float64, device=delta.device)
        for start in range(0, delta.shape[1], _COLUMN_BLOCK):  # H is symmetric: the blocks above the diagonal, twice
            own = delta[:, start : start + _COLUMN_BLOCK]
            product = own @ hessian[start : start + _COLUMN_BLOCK, start:]  # [rows, in − start]
            product[:, own.shape[1] :] *= 2
            errors += (product * delta[:, start:]).sum(-1)
        if drifted is not None:
            errors += 2 * (drifted[part] * delta).sum(-1)
        pieces.append(errors)
    return torch.cat(pieces)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An output error that was found in float32.

    Attributes:
        error: About what it is.
        slack: By how much it is off at most.
    """

    error: float
    slack: float

    def above(self, other: float) -> bool:
        """Whether the error is certainly larger than another."""
        return math.isfinite(self.error) and self.error - self.slack > other


def estimated_error(weight: Tensor, tensor: QuantizedTensor, hessian: Tensor, total: Total = float_sum) -> Estimate:
    """:func:`output_error` of products in float32, and how far it may be off.

    H is symmetric, so that the blocks on and above its diagonal are enough. Of each block of 384 columns by 384, the
    product with Δ and its sum with a row of Δ are float32, off by (2 · 384 + 8) · 2⁻²⁴ · |Δ| |H| |Δ|ᵀ at most, in
    whatever order they are taken, with rounding H and Δ before; rows and blocks are summed in float64.
    |Δ| |H| |Δ|ᵀ is no more than ‖Δ‖² ‖H‖, both of Frobenius.

    Args:
        weight: float [out, in].
        tensor: Ŵ, as it will be run.
        hessian: float64 [in, in], symmetric.
        total: As for :func:`output_error`.
    """
    columns = weight.shape[1]
    norm = float(torch.linalg.vector_norm(hessian))
    largest = float(weight.abs().max()) if len(weight) else 0.0
    if not 0 < norm < math.inf or _rounds_further(weight.device):
        return Estimate(error=math.nan, slack=math.inf)
    down = 2.0 ** -math.frexp(norm)[1]  # so that nothing leaves the range of float32
    shrink = 2.0 ** -math.frexp(largest or 1.0)[1] if largest < math.inf else 1.0
    sums, squares = (torch.zeros(len(weight), dtype=torch.float64, device=weight.device) for _ in range(2))
    for part in row_chunks(weight, copies=2):
        delta = (weight[part].float() - tensor.rows(part).dequantize().float()) * shrink
        squares[part] = delta.square().sum(-1).double()
        for start, first in combinations_with_replacement(range(0, columns, _COLUMN_BLOCK), 2):
            here, there = slice(start, start + _COLUMN_BLOCK), slice(first, first + _COLUMN_BLOCK)
            product = delta[:, here] @ (hessian[here, there] * down).float()
            sums[part] += product.mul_(delta[:, there]).sum(-1).mul_(1 if start == first else 2)
    up = 1 / (shrink * shrink)
    return Estimate(error=total(sums * (up / down)), slack=_OFF * total(squares * up) * norm)


def _rounds_further(device: torch.device) -> bool:
    """Whether the process has let a GPU round the operands of float32 products to fewer bits (TF32, bfloat16)."""
    return device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"


def least_error(
    weight: Tensor,
    rivals: Mapping[str, QuantizedTensor],
    hessian: Tensor,
    drifted: Tensor | None = None,
    total: Total = float_sum,
) -> Rival:
    """The rival of least output error: its name, its codes, its error; the first of equals."""
    errors = {name: output_error(weight, tensor, hessian, drifted, total) for name, tensor in rivals.items()}
    name = min(errors, key=lambda name: errors[name] if math.isfinite(errors[name]) else math.inf)
    return name, rivals[name], errors[name]


def undamped_error(
    weight: Tensor, solved: QuantizedTensor, squares: Tensor, shift: float, dead: Tensor, total: Total = float_sum
) -> float:
    """The :func:`output_error` of codes, from their error δ (H + λI) δᵀ that the column loop has summed on its way.

    Inputs that were always zero have 1 in the place of H_jj there.
    """
    undamped = squares.clone()
    for part in row_chunks(weight, copies=8):
        delta = (weight[part].double() - solved.rows(part).dequantize()).square_()
        undamped[part] -= shift * delta.sum(-1) + delta[:, dead].sum(-1)
    return max(0.0, total(undamped))  # below 0 by rounding alone, where inputs do not span the columns


def least_undamped(
    weight: Tensor,
    rivals: Mapping[str, QuantizedTensor],
    factor: Tensor,
    columns: Tensor,
    shift: float,
    dead: Tensor,
    total: Total = float_sum,
) -> Rival:
    """:func:`least_error` from the factor, for the Hessian may be lost: δ (UᵀU)⁻¹ δᵀ = ‖δ U⁻¹‖²."""
    errors = {}
    for name, tensor in rivals.items():
        squares = torch.zeros(len(weight), dtype=torch.float64, device=weight.device)
        for part in row_chunks(weight, copies=8):
            delta = (weight[part].double() - tensor.rows(part).dequantize())[:, columns]
            squares[part] = torch.linalg.solve_triangular(factor, delta, upper=True, left=False).square_().sum(-1)
        errors[name] = undamped_error(weight, tensor, squares, shift, dead, total)
    name = min(errors, key=lambda name: errors[name])
    return name, rivals[name], errors[name]
