"""How far a quantized layer's output lies from the float layer's, on the inputs of calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.rows import row_chunks

_COLUMN_BLOCK = 512


def output_error(weight: Tensor, tensor: QuantizedTensor, hessian: Tensor) -> float:
    """tr((W − Ŵ) H (W − Ŵ)ᵀ), the squared error of the layer's output summed over outputs, times 2/n; float64.

    Args:
        weight: float [out, in].
        tensor: Ŵ, as it will be run: dequantized in the dtype of its scale.
        hessian: float64 [in, in], symmetric.
    """
    return float(row_errors(weight, tensor, hessian).sum())


def row_errors(weight: Tensor, tensor: QuantizedTensor, hessian: Tensor) -> Tensor:
    """The output error of each output for itself, (w − ŵ) H (w − ŵ)ᵀ, float64 [out]; see :func:`output_error`."""
    restored = tensor.dequantize()
    pieces = []
    for part in row_chunks(weight, copies=2):
        delta = weight[part].double() - restored[part].double()
        errors = torch.zeros(len(delta), dtype=torch.float64, device=delta.device)
        for start in range(0, delta.shape[1], _COLUMN_BLOCK):  # H is symmetric: the blocks above the diagonal, twice
            own = delta[:, start : start + _COLUMN_BLOCK]
            product = own @ hessian[start : start + _COLUMN_BLOCK, start:]  # [rows, in − start]
            product[:, own.shape[1] :] *= 2
            errors += (product * delta[:, start:]).sum(-1)
        pieces.append(errors)
    return torch.cat(pieces)


def least_error(
    weight: Tensor, rivals: Mapping[str, QuantizedTensor], hessian: Tensor
) -> tuple[str, QuantizedTensor, float]:
    """The rival of least output error: its name, its codes, its error; the first of equals."""
    errors = {name: output_error(weight, tensor, hessian) for name, tensor in rivals.items()}
    name = min(errors, key=lambda name: errors[name] if math.isfinite(errors[name]) else math.inf)
    return name, rivals[name], errors[name]
