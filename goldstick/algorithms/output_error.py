"""How far a quantized layer's output lies from the float layer's, on the inputs of calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping

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
    restored = tensor.dequantize()
    total = 0.0
    for part in row_chunks(weight, copies=2):
        delta = weight[part].double() - restored[part].double()
        for start in range(0, delta.shape[1], _COLUMN_BLOCK):  # H is symmetric: the blocks above the diagonal, twice
            own = delta[:, start : start + _COLUMN_BLOCK]
            product = own @ hessian[start : start + _COLUMN_BLOCK, start:]  # [rows, in − start]
            product[:, own.shape[1] :] *= 2
            total += float((product * delta[:, start:]).sum())
    return total


def least_error(
    weight: Tensor, rivals: Mapping[str, QuantizedTensor], hessian: Tensor
) -> tuple[str, QuantizedTensor, float]:
    """The rival of least output error: its name, its codes, its error; the first of equals."""
    errors = {name: output_error(weight, tensor, hessian) for name, tensor in rivals.items()}
    name = min(errors, key=lambda name: errors[name] if math.isfinite(errors[name]) else math.inf)
    return name, rivals[name], errors[name]
