"""SLB as block reconstruction: a search among the levels next to another stage's codes, for a whole block at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from goldstick.algorithms.block_reconstruction import AnnealedSearch, CodeSearch
from goldstick.algorithms.soft_assignment import MeanCode, likeliest
from goldstick.core.qtensor import QuantizedTensor, in_groups

#: Logits at the start are −2·d², d the distance in steps; see :mod:`goldstick.algorithms.soft_assignment`.
_SHARPNESS = 2.0
#: How far from its code a weight may lie at the start, so that the code is the likeliest of its levels.
_NEAREST = 0.45
#: Logit of a level that the grid does not have.
_NEVER = -1e4


class NeighbourSearch(nn.Module, CodeSearch):
    """A weight assigned softly to its code and the two next to it.

    W = s·(c − 1 + Σ_k P_k·k − zero), k = 0, 1, 2, P = softmax(T·A) while T is finite, and the likeliest level
    otherwise. A = −2·(p − c + 1 − k)² at the start, where p is the float weight in steps, but no further than 0.45 from
    c: so the start's codes are the likeliest levels, and the mean lies near the float weight. s learns as s₀·exp(δ).

    Args:
        tensor: The start.
        weight: The float weight it stands for, [out, in].
        options: The stage.
    """

    def __init__(self, tensor: QuantizedTensor, weight: Tensor, options: SLBFinish) -> None:
        super().__init__()
        self.start, self.options = tensor, options
        grid = tensor.grid
        codes = tensor.codes.float()
        zero = float(grid.midpoint) if tensor.zero is None else tensor.zero.float().unsqueeze(-1)
        position = (in_groups(weight.float(), grid) / tensor.scale.float().unsqueeze(-1) + zero).flatten(-2)
        beside = (position - codes).clamp(-_NEAREST, _NEAREST)
        offsets = torch.tensor([-1.0, 0.0, 1.0], dtype=codes.dtype, device=codes.device).reshape(-1, 1, 1)
        logits = -_SHARPNESS * (beside - offsets).square()
        there = (codes + offsets >= 0) & (codes + offsets <= grid.code_max)
        self.logits = nn.Parameter(torch.where(there, logits, _NEVER))
        self.log_scale = nn.Parameter(torch.zeros_like(tensor.scale, dtype=torch.float32))
        self.temperature = 1.0

    def anneal(self, progress: float) -> None:
        """T = 1 first, then rising to its highest in equal ratios, then infinite."""
        options = self.options
        share = (progress - options.anneal_from) / (options.harden_at - options.anneal_from)
        self.temperature = math.inf if share >= 1 else options.temperature ** max(0.0, share)

    def weight(self) -> Tensor:
        """W, [out, in], in the dtype of the scales."""
        if math.isfinite(self.temperature):
            moved = MeanCode.apply(self.logits, self.temperature)  # type: ignore[no-untyped-call]
        else:
            moved = likeliest(self.logits)
        return self._dequantized(self.start.codes.float() - 1 + moved)

    def groups(self) -> list[tuple[nn.Parameter, float]]:
        """Its parameters with their learning rates at their highest."""
        return [(self.logits, self.options.logits_rate), (self.log_scale, self.options.rate)]

    def decision(self) -> QuantizedTensor:
        """The likeliest levels, with the scale in the dtype it is stored in."""
        codes = (self.start.codes.long() - 1 + likeliest(self.logits)).to(self.start.codes.dtype)
        return QuantizedTensor(
            codes=codes,
            scale=self._scale().detach(),
            zero=self.start.zero,
            grid=self.start.grid,
            input_order=self.start.input_order,
        )

    def _scale(self) -> Tensor:
        return (self.start.scale.float() * self.log_scale.exp()).to(self.start.scale.dtype)

    def _dequantized(self, codes: Tensor) -> Tensor:
        grid, scale = self.start.grid, self._scale().unsqueeze(-1)
        zero = float(grid.midpoint) if self.start.zero is None else self.start.zero.float().unsqueeze(-1)
        return ((in_groups(codes, grid) - zero) * scale.float()).flatten(-2).to(scale.dtype)


@dataclass(frozen=True, kw_only=True)
class SLBFinish(AnnealedSearch):
    """Search for low-bit weights (arXiv 2009.08695) after training, from the codes of the stages before.

    Block by block: every weight is assigned softly to its code and the two levels next to it, the assignments are
    sharpened while the block learns to give what the float block gives on the float model's inputs, and the likeliest
    levels stay. Scales learn with them. A block whose error did not fall keeps its start.

    Attributes:
        steps: Optimizer steps for each block, of one calibration batch each.
        rate: The learning rate of the scales' logarithms at its highest; it falls to nothing.
        logits_rate: The learning rate of the logits.
        temperature: The highest T.
        anneal_from: Share of the steps after which T rises.
        harden_at: Share of the steps after which weights are one-hot and scales alone learn.
        batches: Calibration batches of a step.
        holdout: Share of the batches, the last, that a block does not learn from and is judged by; at 0 by all.
        seed: Seed of the order of the batches.
    """

    name: ClassVar[str] = "slb_finish"

    def search(self, tensor: QuantizedTensor, weight: Tensor) -> NeighbourSearch:
        """The search around the codes of a weight."""
        return NeighbourSearch(tensor, weight, self)
