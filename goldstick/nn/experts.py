"""QuantizedExperts: the fused weights of all experts of a mixture, dequantized one expert at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.layout import Layout
from goldstick.nn.packed import PackedWeight


class QuantizedExperts(PackedWeight):
    """Takes the place of a fused parameter [experts, out, in] (or [experts, in, out]) inside the experts module.

    Indexing gives one expert's matrix as the parameter's would, so the module's own forward runs on unchanged.

    Args:
        tensor: Codes [experts, out, in].
        scheme: Grid of the weights.
    """

    def __getitem__(self, expert: Tensor | int) -> Tensor:
        """The matrix of one expert, as the replaced parameter stored it."""
        zero = None if self.weight_zero_point is None else self.weight_zero_point[expert]
        divisor = None if self.weight_global_scale is None else self.weight_global_scale[expert]
        matrix = self._dequantize(self.weight_packed[expert], self.weight_scale[expert], zero, divisor)
        return matrix.transpose(-1, -2) if self.stored_as is Layout.TRANSPOSED_EXPERTS else matrix

    @property
    def shape(self) -> torch.Size:
        """Shape of the parameter."""
        return self.stored_shape

    @property
    def dtype(self) -> torch.dtype:
        """What its numbers are in."""
        return self.weight_scale.dtype

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.weight_scale.device

    def __len__(self) -> int:
        return self.stored_shape[0]
