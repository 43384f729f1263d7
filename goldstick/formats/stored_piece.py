"""StoredPiece: a quantized matrix together with the name and the description that a checkpoint gives it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from goldstick.core.qtensor import QuantizedTensor
from goldstick.formats.base import StoredLayer


@dataclass(frozen=True, kw_only=True)
class StoredPiece:
    """One quantized matrix under the name a checkpoint gives it, with what stands beside it for its layer's input."""

    layer: StoredLayer
    tensor: QuantizedTensor
    input_scale: Tensor | None = None
    input_zero: Tensor | None = None
    input_multiplier: Tensor | None = None
