"""PaddedEncoder: torch's encoder whose layers are given rows of one length, and whose padding comes out as it did."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class PaddedEncoder(nn.TransformerEncoder):
    """An ``nn.TransformerEncoder`` that makes no nested tensors.

    In evaluation mode torch's own packs the tokens that a ``src_key_padding_mask`` leaves into a nested tensor, which
    only its own shortcut can work on, and what it gives in the places of padding is 0, before the last norm. This one
    gives its layers padded rows, and 0 in the same places under the same conditions.
    """

    stands_for = frozenset({nn.TransformerEncoder})
    made_nested_tensors: bool

    def take_over(self) -> None:
        """Take note of what the encoder did before it became one of these."""
        self.made_nested_tensors = bool(getattr(self, "use_nested_tensor", False))
        self.use_nested_tensor = False

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """As ``nn.TransformerEncoder``."""
        found = super().forward(src, mask, src_key_padding_mask, is_causal)
        if src_key_padding_mask is None or mask is not None or not self._gives_zeros(src, src_key_padding_mask):
            return found
        nothing = torch.zeros_like(found[:1, :1])
        if self.norm is not None:
            nothing = self.norm(nothing)
        return torch.where(_padding(src_key_padding_mask).unsqueeze(-1), nothing, found)

    def _gives_zeros(self, src: Tensor, src_key_padding_mask: Tensor) -> bool:
        """Whether torch's encoder would pack the tokens of these inputs."""
        first: Any = self.layers[0]
        if not self.made_nested_tensors or not torch.backends.mha.get_fastpath_enabled():
            return False
        if first.training or src.ndim != 3 or src.is_nested or torch.is_autocast_enabled():
            return False
        if torch.is_grad_enabled() and (src.requires_grad or any(one.requires_grad for one in first.parameters())):
            return False
        if not getattr(self, "mask_check", True):
            return True
        if torch.compiler.is_compiling():
            return False
        return bool(torch._nested_tensor_from_mask_left_aligned(src, _padding(src_key_padding_mask).logical_not()))


def _padding(mask: Tensor) -> Tensor:
    """Which tokens are padding: of a mask of numbers, those that −∞ is added to, or anything else but 0."""
    return mask if mask.dtype == torch.bool else mask != 0
