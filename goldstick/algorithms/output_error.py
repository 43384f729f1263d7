"""How far a quantized layer's output lies from the float layer's, on the inputs of calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.rows import row_chunks

_COLUMN_BLOCK = 512

Rival = tuple[str, QuantizedTensor, float]
"""The name of a rounding's ranges, its codes, its output error."""


def output_error(weight: Tensor, tensor: QuantizedTensor, hessian: Tensor, drifted: Tensor | None = None) -> float:
    """tr((W − Ŵ) H (W − Ŵ)ᵀ), the squared error of the layer's output summed over outputs, times 2/n; float64.

    With ``drifted`` = W D the error is measured against the float model (arXiv 2504.02692, equation 6), up to a term
    that no codes change, so it may be negative: ‖W x_fp − Ŵ x_q‖² = ‖(W − Ŵ) x_q + W (x_fp − x_q)‖² summed over the
    inputs, times 2/n, is tr((W − Ŵ) H (W − Ŵ)ᵀ) + 2 tr(W D (W − Ŵ)ᵀ) + the sum of ‖W (x_fp − x_q)‖².

    Args:
        weight: float [out, in].
        tensor: Ŵ, as it will be run: dequantized in the dtype of its scale.
        hessian: float64 [in, in], symmetric.
        drifted: W D with D = (2/n) Σ (x_fp − x_q) x_qᵀ, float64 [out, in].
    """
    return float(row_errors(weight, tensor, hessian, drifted).sum())


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


def least_error(
    weight: Tensor, rivals: Mapping[str, QuantizedTensor], hessian: Tensor, drifted: Tensor | None = None
) -> Rival:
    """The rival of least output error: its name, its codes, its error; the first of equals."""
    errors = {name: output_error(weight, tensor, hessian, drifted) for name, tensor in rivals.items()}
    name = min(errors, key=lambda name: errors[name] if math.isfinite(errors[name]) else math.inf)
    return name, rivals[name], errors[name]
