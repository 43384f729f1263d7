"""Quantized embeddings, and output heads tied to one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.nn.linear import packed_linear
from goldstick.nn.packed import PackedWeight


class QuantizedEmbedding(PackedWeight):
    """Embedding whose rows are dequantized as they are looked up.

    Args:
        tensor: Codes [rows, features].
        scheme: Grid of the weight.
        multiplier: What some models multiply embeddings by (Gemma's √hidden), 1 otherwise.
    """

    def __init__(self, tensor: QuantizedTensor, scheme: Scheme, multiplier: float = 1.0) -> None:
        super().__init__(tensor, scheme)
        self.multiplier = float(multiplier)

    def forward(self, ids: Tensor) -> Tensor:
        """Integers [...] → [..., features]."""
        flat = ids.reshape(-1)
        # Indices in brackets might be negative, and give rows of the end.
        zero = None if self.weight_zero_point is None else self.weight_zero_point.index_select(0, flat)
        packed, scale = self.weight_packed.index_select(0, flat), self.weight_scale.index_select(0, flat)
        rows = self._dequantize(packed, scale, zero)
        rows = rows.reshape(*ids.shape, self.in_features)
        # The factor is rounded to the rows' dtype first, as the float layer does.
        return rows if self.multiplier == 1.0 else rows * torch.tensor(self.multiplier, dtype=rows.dtype)


class TiedQuantizedLinear(nn.Module):
    """An output head that multiplies by the embedding's packed weight and owns none itself.

    Args:
        embedding: The module whose weight it uses.
        bias: float [rows], or ``None``.
    """

    def __init__(self, embedding: QuantizedEmbedding, bias: Tensor | None = None) -> None:
        super().__init__()
        self._embedding = (embedding,)  # in a tuple, so that it is not registered twice
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., features] → [..., rows]."""
        return packed_linear(self._embedding[0], x, self.bias)
