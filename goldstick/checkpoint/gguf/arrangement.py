"""How the numbers of a checkpoint's tensor lie in a GGUF file: order of rows, parts, sums, transposition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

#: How the rows of two matrices lie in one tensor of a checkpoint: in turn, or one matrix after the other.
Split = Literal["in_turn", "halves"]


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """What happens to a tensor on its way into a file, and back.

    Attributes:
        order: Row k of the file is row ``order[k]``, int64 [rows]; ``None`` where rows stay.
        shift: What is added to numbers in float; the file holds what a norm multiplies with.
        transposed: Whether the checkpoint stores float matrices as [in, out], where the file holds [out, in].
        split: How a tensor of the checkpoint holds the rows of two of the file; ``None`` where it is one.
        vector: Whether rows are single numbers (norms, biases), so that they are the last dimension.
        lone: Whether the file holds the only row of a matrix [1, in] as a vector.
    """

    order: Tensor | None = None
    shift: float = 0.0
    transposed: bool = False
    split: Split | None = None
    vector: bool = False
    lone: bool = False

    @property
    def _dim(self) -> int:
        return -1 if self.vector else -2

    def to_ggml(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of the file, from one of the checkpoint: floats, or the packed rows uint8 [..., out, bytes]."""
        blocks = tensor.dtype is torch.uint8
        if self.transposed and not blocks:
            tensor = tensor.transpose(-1, -2)
        if self.order is not None:
            tensor = tensor.index_select(self._dim, self.order)
        if self.shift and not blocks:
            tensor = tensor.float() + self.shift
        tensor = tensor.squeeze(0) if self.lone else tensor
        return [part.contiguous() for part in self._divided(tensor)]

    def to_transformers(self, parts: Sequence[Tensor]) -> Tensor:
        """The inverse of :meth:`to_ggml`; numbers that were shifted come in float32."""
        tensor = self._joined(parts)
        tensor = tensor.unsqueeze(0) if self.lone and tensor.ndim == 1 else tensor
        if self.shift and tensor.dtype is not torch.uint8:
            tensor = tensor.float() - self.shift
        if self.order is not None:
            tensor = tensor.index_select(self._dim, self.order.argsort())
        if self.transposed and tensor.dtype is not torch.uint8:
            tensor = tensor.transpose(-1, -2)
        return tensor.contiguous()

    def _divided(self, tensor: Tensor) -> Sequence[Tensor]:
        if self.split is None:
            return [tensor]
        if self.split == "halves":
            return tensor.chunk(2, dim=self._dim)
        dim = tensor.ndim + self._dim
        return [tensor.index_select(dim, torch.arange(first, tensor.shape[dim], 2)) for first in (0, 1)]

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        if self.split is None:
            return parts[0]
        if self.split == "halves":
            return torch.cat(list(parts), dim=self._dim)
        dim = parts[0].ndim + self._dim
        return torch.stack(list(parts), dim=dim + 1).flatten(dim, dim + 1)
