"""Quantization-aware training with straight-through gradients: what SLB is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from goldstick.algorithms import SLB
from goldstick.algorithms.soft_assignment import fit_scale, zero_of
from goldstick.core.edits import Edit, Quantize
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor, in_groups
from goldstick.core.scheme import Scheme
from goldstick.core.trainable_wrapper import TrainableWrapper
from goldstick.errors import QuantizationError
from goldstick.structure.network import Site


class RoundedLayer(TrainableWrapper):
    """A layer whose weight is s·(clamp(round(W/s + zero)) − zero) in every forward; rounding counts as slope 1."""

    def __init__(self, layer: nn.Module, site: Site, grid: Grid) -> None:
        super().__init__(layer)
        self.site, self.grid = site, grid

    def anneal(self, progress: float) -> None:
        """Nothing: rounding has no temperature."""

    def matrix(self) -> Tensor:
        """The weight in float, [out, in]."""
        return self.site.layout.to_matrix(getattr(self.layer, self.site.parameter))

    def scale(self) -> Tensor:
        """s, [out, groups]: the outermost levels reach the largest weight, as in torch's fake quantization."""
        largest = in_groups(self.matrix().detach(), self.grid).abs().amax(-1)
        return (largest / (self.grid.code_max - zero_of(self.grid))).clamp_min(torch.finfo(largest.dtype).tiny)

    def parts(self) -> tuple[Tensor, Tensor]:
        """Codes [out, in], differentiable in the weight, and the scale [out, groups]."""
        weight, scale = self.matrix(), self.scale()
        spread = scale.repeat_interleave(weight.shape[-1] // scale.shape[-1], dim=-1)
        wanted = (weight / spread + zero_of(self.grid)).clamp(0, 2**self.grid.bits - 1)
        return wanted + (wanted.round() - wanted).detach(), scale

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the layer gives with the rounded weight."""
        codes, scale = self.parts()
        spread = scale.repeat_interleave(codes.shape[-1] // scale.shape[-1], dim=-1)
        weight = self.site.layout.from_matrix((codes - zero_of(self.grid)) * spread, self.site.shape)
        return functional_call(self.layer, {self.site.parameter: weight}, inputs, named)


class LearnedStepLayer(RoundedLayer):
    """The same with a scale that learns as s₀·exp(δ) from the one of least squared error (arXiv 1902.08153)."""

    first_scale: Tensor

    def __init__(self, layer: nn.Module, site: Site, grid: Grid) -> None:
        super().__init__(layer, site, grid)
        scale = fit_scale(self.matrix().detach(), grid)
        self.log_scale = nn.Parameter(torch.zeros_like(scale))
        self.register_buffer("first_scale", scale)

    def scale(self) -> Tensor:
        """s, [out, groups]."""
        return self.first_scale * self.log_scale.exp()


@dataclass(frozen=True, kw_only=True)
class StraightThrough(SLB):
    """Straight-through quantization-aware training, of the layers SLB would take and to the same levels."""

    name: ClassVar[str] = "straight-through"
    stand_in: ClassVar[type[RoundedLayer]] = RoundedLayer

    def wrap(self, site: Site, layer: nn.Module, scheme: Scheme) -> Any:
        """The stand-in of a layer."""
        return self.stand_in(layer, site, scheme.weight)

    def solve(self, site: Site, weight: Tensor, state: TrainableWrapper | None, scheme: Scheme) -> Sequence[Edit]:
        """One ``Quantize`` edit: the trained weight, rounded."""
        if not isinstance(state, RoundedLayer):
            raise QuantizationError("The layer was not trained.")
        found, scale = state.parts()
        codes = found.detach().round().to(torch.uint8)
        zero = torch.full_like(scale, zero_of(scheme.weight)).detach()
        tensor = QuantizedTensor(codes=codes, scale=scale.detach(), zero=zero, grid=scheme.weight)
        return [Quantize(site=site.name, scheme=scheme, tensor=tensor, algorithm=self.name)]


@dataclass(frozen=True, kw_only=True)
class LearnedStep(StraightThrough):
    """Straight-through training that learns its scales, too."""

    name: ClassVar[str] = "learned-step"
    stand_in: ClassVar[type[RoundedLayer]] = LearnedStepLayer
