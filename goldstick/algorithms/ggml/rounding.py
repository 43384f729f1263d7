"""Weights rounded as ggml rounds them, some rows at a time."""

from __future__ import annotations

from torch import Tensor

from goldstick.algorithms.ggml.blocks import quantize_blocks
from goldstick.algorithms.ggml.superblocks import quantize_superblocks
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor, joined, scale_dtype
from goldstick.core.rows import row_chunks
from goldstick.errors import QuantizationError

_COPIES = 24


def quantize_as_ggml(weight: Tensor, grid: Grid, importance: Tensor | None = None) -> QuantizedTensor:
    """Round ``weight`` with the published search of ggml's type of that grid, block for block its own bytes.

    Args:
        weight: float [..., out, in].
        grid: Superblocks, or groups of 32 of integers (8, 5 or 4 bits), of IQ4 or of MXFP4.
        importance: What the error of each column counts, 0 or more, float [matrices, in], or ``None``.

    Raises:
        QuantizationError: The weight holds NaN or infinity, a scale does not fit float16, or rows do not divide.
    """
    if not grid.divides(weight.shape[-1]):
        raise QuantizationError(
            f"Rows of {weight.shape[-1]} weights do not divide into blocks of {grid.superblock or grid.group_size}; "
            "take a type of smaller blocks, such as q8_0, q5_0 or iq4_nl, for this layer."
        )
    pieces, dtype = [], scale_dtype(weight.dtype)
    for index, matrix in enumerate(weight.reshape(-1, *weight.shape[-2:])):
        counts = None if importance is None else importance[index].to(matrix.device)
        for part in row_chunks(matrix, _COPIES):
            rows = matrix[part].float()
            # The sum of finite values may overflow, but with one that is not finite it never is: one pass, as a rule.
            if not bool(rows.sum().isfinite()) and (bad := int((~rows.isfinite()).sum())):
                raise QuantizationError(f"{bad} values of the weight are NaN or infinite.")
            if grid.superblock is None:
                pieces.append(quantize_blocks(rows, grid, counts, dtype))
            else:
                pieces.append(quantize_superblocks(rows, grid, counts, dtype))
    return joined(pieces, weight.shape, grid)
