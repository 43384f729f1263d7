"""Layout: how a parameter stores the matrix that a layer multiplies with."""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

#: Classes of linear layers that store their weight as [in, out] (transformers' Conv1D of GPT-2).
TRANSPOSED_LINEAR_CLASSES = frozenset({"Conv1D"})


class Layout(StrEnum):
    """How a parameter stores the matrix [out, in] (or one per expert)."""

    LINEAR = "linear"  # [out, in]
    TRANSPOSED = "transposed"  # [in, out]
    CONVOLUTION = "convolution"  # [out, in / groups, *kernel]
    TRANSPOSED_CONVOLUTION = "transposed_convolution"  # [in, out, *kernel]
    EMBEDDING = "embedding"  # [rows, features]
    MATRIX = "matrix"  # [out, in], beside others of the same module, whose own forward reads it
    EXPERTS = "experts"  # [experts, out, in]
    TRANSPOSED_EXPERTS = "transposed_experts"  # [experts, in, out]

    @property
    def multiplied(self) -> bool:
        """Whether its module is one linear layer."""
        return self in (Layout.LINEAR, Layout.TRANSPOSED)

    @property
    def fused(self) -> bool:
        """Whether it holds the weights of all experts."""
        return self in (Layout.EXPERTS, Layout.TRANSPOSED_EXPERTS)

    def to_matrix(self, parameter: Tensor) -> Tensor:
        """The canonical view [..., out, in] of a stored parameter."""
        if self in (Layout.TRANSPOSED, Layout.TRANSPOSED_EXPERTS):
            return parameter.transpose(-1, -2)
        if self is Layout.TRANSPOSED_CONVOLUTION:
            return parameter.transpose(0, 1).flatten(1)
        return parameter.flatten(1) if self is Layout.CONVOLUTION else parameter

    def from_matrix(self, matrix: Tensor, shape: torch.Size) -> Tensor:
        """The stored form of a canonical matrix; inverse of :meth:`to_matrix`."""
        if self in (Layout.TRANSPOSED, Layout.TRANSPOSED_EXPERTS):
            return matrix.transpose(-1, -2)
        if self is Layout.TRANSPOSED_CONVOLUTION:
            return matrix.reshape(shape[1], shape[0], *shape[2:]).transpose(0, 1)
        return matrix.reshape(shape)
