"""Scales of 0 in a file over codes that are not: weights that are lost."""

from __future__ import annotations

from dataclasses import replace

import torch

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.rows import row_chunks
from goldstick.errors import QuantizationError

#: With eight bits of exponent no weight is too small for its scale to be stored.
_WIDE = (torch.float32, torch.bfloat16)


def check_no_weight_is_lost(tensor: QuantizedTensor) -> None:
    """Refuse scales of 0 from a file that stand over codes of other numbers.

    Scales in float16, and those that are codes in their turn, may have been too small to be stored; there 0 is meant.

    Raises:
        QuantizationError: Some are, in a dtype with eight bits of exponent.
    """
    scale = tensor.scale
    if tensor.grid.scale is not None or scale.dtype not in _WIDE or scale.is_meta or bool(scale.all()):
        return
    unscaled, lost = replace(tensor, scale=(scale == 0).to(scale.dtype)).flattened(), 0
    for chunk in row_chunks(unscaled.codes, copies=8):
        lost += int(unscaled.rows(chunk).dequantize().count_nonzero())
    if lost:
        raise QuantizationError(
            f"{int((scale == 0).sum()):,} of its {scale.numel():,} scales are 0, which makes {lost:,} weights 0 whose "
            "codes are not. Fetch the checkpoint again, or quantize it again."
        )
