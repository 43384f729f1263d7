"""Scales that learn: s = s₀·exp(δ), rounded in every step to what can be stored."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from goldstick.core.grid import POWERS_OF_TWO, Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.straight_through import passing

_FLOAT8 = torch.float8_e4m3fn
_FLOAT8_LARGEST, _FLOAT8_LEAST = 448.0, 2.0**-9


def can_learn(grid: Grid) -> bool:
    """Whether scales of a grid can move a little each: floats and FP8 of channels or groups, no powers of two.

    Scales of superblocks are whole numbers, and those of blocks and tensors are shared by rows.
    """
    shared = grid.rows_share_scales
    return grid.superblock is None and grid.scale != POWERS_OF_TWO and not shared


class LearnedScale(nn.Module):
    """The scales of a weight, which learn where they can.

    Args:
        tensor: The weight; s₀ is its scale, which stays as it is.
        stored: The dtype in which scales are stored; that of s₀ where ``None``. FP8 scales are stored as FP8.
        learns: Whether they learn at all.
    """

    first: Tensor

    def __init__(self, tensor: QuantizedTensor, stored: torch.dtype | None = None, *, learns: bool = True) -> None:
        super().__init__()
        self.learns = learns and can_learn(tensor.grid)
        self.dtype = tensor.scale.dtype
        self.stored = _FLOAT8 if tensor.global_scale is not None else stored or tensor.scale.dtype
        self.register_buffer("first", tensor.scale.float(), persistent=False)
        self.log_scale = nn.Parameter(torch.zeros_like(self.first))

    def forward(self) -> Tensor:
        """s, float32 [out, groups], with the values that will be stored; gradients pass the rounding."""
        if not self.learns:
            return self.first
        wanted = self.first * self.log_scale.exp()
        found = wanted.detach()
        if self.stored == _FLOAT8:
            found = found.clamp(_FLOAT8_LEAST, _FLOAT8_LARGEST)
        return passing(wanted, found.to(self.dtype).to(self.stored).float())

    def settled(self) -> Tensor:
        """s in the dtype of s₀."""
        return self.forward().detach().to(self.dtype)
