"""Quantized embeddings, and output heads tied to one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from goldstick.nn.lazy_weight import LazyWeight
from goldstick.nn.linear import packed_linear
from goldstick.nn.packed import PackedWeight, bias_of


class QuantizedEmbedding(PackedWeight):
    """Embedding whose rows are dequantized as they are looked up.

    Args:
        tensor: Codes [rows, features].
        scheme: Grid of the weight.
    """

    stands_for = frozenset({nn.Embedding})
    max_norm: float | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Integers [...] → [..., features]."""
        if self.max_norm is not None:  # rows that are longer are shortened, those that are looked up
            more: Any = self
            return F.embedding(input, self.stored_numbers(), None, self.max_norm, more.norm_type)
        flat = input.reshape(-1)
        # Indices in brackets might be negative, and give rows of the end.
        zero = None if self.weight_zero_point is None else self.weight_zero_point.index_select(0, flat)
        packed, scale = self.weight_packed.index_select(0, flat), self.weight_scale.index_select(0, flat)
        divisor = self.weight_global_scale
        if divisor is not None and self.grid.superblock is not None:
            divisor = divisor.index_select(0, flat)
        return self._dequantize(packed, scale, zero, divisor).reshape(*input.shape, self.columns)


class TiedQuantizedLinear(nn.Module):
    """An output head that multiplies by the embedding's packed weight and owns none itself.

    Args:
        embedding: The module whose weight it uses.
        bias: float [rows], or ``None``.
    """

    stands_for = frozenset({nn.Linear})
    _made_of: tuple[type[nn.Module], type[nn.Module]]
    _embedding: tuple[QuantizedEmbedding]
    bias: nn.Parameter | None

    def __init__(self, embedding: QuantizedEmbedding, bias: Tensor | None = None) -> None:
        nn.Module.__init__(self)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach(), requires_grad=False))
        self.read_from(embedding)
        self.in_features, self.out_features = embedding.columns, embedding.weight_packed.shape[0]

    def read_from(self, embedding: QuantizedEmbedding) -> None:
        """Take the embedding whose weight it uses."""
        self._embedding = (embedding,)  # in a tuple, so that it is not registered twice

    @property
    def weight(self) -> Tensor:
        """The embedding's weight, for forwards that read it; see :class:`~goldstick.nn.lazy_weight.LazyWeight`."""
        return self.stored_numbers() if torch.compiler.is_compiling() else LazyWeight(self)

    @property
    def weight_scale(self) -> nn.Parameter:
        """The embedding's scales."""
        return self._embedding[0].weight_scale

    @property
    def stored_shape(self) -> torch.Size:
        """Shape of its weight."""
        return self._embedding[0].stored_shape

    def stored_numbers(self) -> Tensor:
        """The dequantized weight."""
        return self._embedding[0].stored_numbers()

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x·Ŵᵀ + b, perhaps with another bias than the layer's own, for forwards that multiply by themselves."""
        return packed_linear(self._embedding[0], x, bias)

    def forward(self, input: Tensor) -> Tensor:
        """[..., features] → [..., rows]."""
        return self.product(input, bias_of(self))
