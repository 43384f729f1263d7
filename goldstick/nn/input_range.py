"""The static range of an input as buffers of the layer that is given it."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.input_range import check_input_range
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.nn.packed import PackedWeight


def hold_input_range(
    module: PackedWeight, tensor: QuantizedTensor, scheme: Scheme, scale: Tensor | None, zero: Tensor | None
) -> None:
    """Register ``input_scale`` [1] in the dtype of the weight's scales and ``input_zero_point`` int8 [1].

    What the scales of an NVFP4 input are divided by stays float32.

    Raises:
        QuantizationError: One is missing, or given where the scheme has no use for it.
    """
    check_input_range(scheme, scale, zero)
    kept = None if scale is None else scale.reshape(1).to(tensor.scale)
    if scale is not None and scheme.activation is not None and scheme.activation.tensor_scaled:
        kept, module.kept_in_float32 = scale.reshape(1).float(), (*module.kept_in_float32, "input_scale")
    if kept is not None:  # a small one may have become 0 in 16 bits
        kept = torch.where(kept == 0, torch.finfo(kept.dtype).tiny, kept)
    module.register_buffer("input_scale", kept)
    module.register_buffer("input_zero_point", None if zero is None else zero.reshape(1).to(tensor.scale.device))
