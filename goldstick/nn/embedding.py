"""Quantized embeddings, and output heads tied to one."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from goldstick.nn.linear import packed_linear
from goldstick.nn.packed import PackedWeight


class QuantizedEmbedding(PackedWeight):
    """Embedding whose rows are dequantized as they are looked up.

    Args:
        tensor: Codes [rows, features].
        scheme: Grid of the weight.
    """

    stands_for = frozenset({nn.Embedding})
    max_norm: float | None = None

    def forward(self, ids: Tensor) -> Tensor:
        """Integers [...] → [..., features]."""
        if self.max_norm is not None:  # rows that are longer are shortened, those that are looked up
            more: Any = self
            return F.embedding(ids, self.stored_numbers(), None, self.max_norm, more.norm_type)
        flat = ids.reshape(-1)
        # Indices in brackets might be negative, and give rows of the end.
        zero = None if self.weight_zero_point is None else self.weight_zero_point.index_select(0, flat)
        packed, scale = self.weight_packed.index_select(0, flat), self.weight_scale.index_select(0, flat)
        divisor = self.weight_global_scale
        if divisor is not None and self.grid.superblock is not None:
            divisor = divisor.index_select(0, flat)
        return self._dequantize(packed, scale, zero, divisor).reshape(*ids.shape, self.columns)


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
        self.in_features, self.out_features = embedding.columns, embedding.weight_packed.shape[0]

    @property
    def weight(self) -> Tensor:
        """The embedding's weight, for forwards that read it."""
        return self._embedding[0].weight

    def forward(self, x: Tensor) -> Tensor:
        """[..., features] → [..., rows]."""
        return packed_linear(self._embedding[0], x, self.bias)
