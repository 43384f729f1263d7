"""ChannelGate: how much of each channel a network wants of real data, and how much of their knockoffs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from goldstick.core.trainable_wrapper import TrainableWrapper


class ChannelGate(TrainableWrapper):
    """A layer whose channels are mixed with those that knockoff data give: z = β·z_real + (1 − β)·z_knockoff.

    Batches hold real data in their first half and their knockoffs in the second; the second half passes unchanged. One
    β in [0, 1] for each unit, which may be several channels (arXiv 2010.10732, equation 5). In evaluation mode the
    layer is what it was.

    Args:
        layer: The layer, or another gate on it: a layer may read the channels of one group and make those of another.
        units: For each channel the number of its unit; −1 where it belongs to none.
        count: How many units there are.
        reads: Whether the channels are the layer's inputs instead of its outputs.
    """

    units: Tensor
    squares: Tensor
    counts: Tensor

    def __init__(self, layer: nn.Module, units: Sequence[int], count: int, *, reads: bool) -> None:
        super().__init__(layer)
        device = next(layer.parameters()).device
        self.beta = nn.Parameter(torch.full((count,), 0.5, dtype=torch.float32, device=device))
        self.register_buffer("units", torch.tensor(list(units), device=device), persistent=False)
        for name in ("squares", "counts"):  # of each unit's real numbers; of those of no unit, last
            self.register_buffer(name, torch.zeros(count + 1, dtype=torch.float64, device=device))
        self.reads = reads
        own = layer
        while isinstance(own, ChannelGate):
            own = own.layer
        self.axis = 1 if isinstance(own, _ConvNd | _BatchNorm) else -1

    @property
    def weight(self) -> Tensor:
        """The layer's weight, for model code that asks for its dtype or device."""
        return self.layer.get_parameter("weight")

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the layer gives, its channels mixed."""
        if not self.training:
            return self.layer(*inputs, **named)
        if self.reads:
            return self.layer(self._mixed(inputs[0]), *inputs[1:], **named)
        return self._mixed(self.layer(*inputs, **named))

    def _mixed(self, values: Tensor) -> Tensor:
        axis = self.axis % values.ndim
        real, knockoff = values.chunk(2)
        own = torch.cat([self.beta, self.beta.new_ones(1)])[self.units]  # −1, no unit, takes the last
        beta = own.to(values.dtype).reshape([-1 if index == axis else 1 for index in range(values.ndim)])
        with torch.no_grad():
            others = [index for index in range(values.ndim) if index != axis]
            squares = real.double().square().sum(others)  # [channels]
            owners = self.units % len(self.squares)
            self.squares.index_add_(0, owners, squares)
            self.counts.index_add_(0, owners, torch.full_like(squares, real.numel() / len(squares)))
        return torch.cat([beta * real + (1 - beta) * knockoff, knockoff])

    def anneal(self, progress: float) -> None:
        """β goes back into [0, 1] after each step."""
        with torch.no_grad():
            self.beta.clamp_(0, 1)

    def strength(self) -> Tensor:
        """The root mean square of each unit's channels over the training's real data, float64 [units]."""
        return (self.squares[:-1] / self.counts[:-1].clamp_min(1)).sqrt()
