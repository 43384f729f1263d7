"""SLB: search for low-bit weights by training soft assignments to their levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from goldstick.algorithms.base import TrainedQuantizer
from goldstick.algorithms.soft_assignment import (
    MeanCode,
    fit_scale,
    warm_logits,
    with_rounded_inputs,
    zero_of,
)
from goldstick.core.edits import Edit, Quantize
from goldstick.core.layout import Layout
from goldstick.core.qtensor import QuantizedTensor
from goldstick.core.scheme import Scheme
from goldstick.core.straight_through import rounded_to
from goldstick.core.trainable_wrapper import ParameterGroup, TrainableWrapper
from goldstick.core.training import TrainingOptions
from goldstick.errors import QuantizationError, RecipeError
from goldstick.structure.network import Network, Site

_LAYOUTS = (Layout.LINEAR, Layout.TRANSPOSED, Layout.CONVOLUTION)


class SoftLayer(TrainableWrapper):
    """A layer whose weight is assigned softly to the levels of a grid.

    W = s·(Σ_k P_k·k − zero) with P = softmax(T·A) in training mode while it is soft, and s·(argmax_k A_k − zero)
    otherwise. While T is finite, A has the gradient of the former. It starts from the layer's own weight, s at the step
    of least squared error; s learns as s₀·exp(δ), so it stays positive. s and W are rounded to the dtype in which the
    layer came, which is that of the result, and are otherwise computed in float32; the layer may be held in another
    dtype while it trains, and W is given in that.

    Args:
        layer: The layer. Its weight no longer learns; its bias does.
        site: Where it lies.
        scheme: The levels, and whether inputs are rounded to 8 bits.
        options: The stage.
    """

    logits: nn.Parameter
    first_scale: Tensor
    first_codes: Tensor

    def __init__(self, layer: nn.Module, site: Site, scheme: Scheme, options: SLB) -> None:
        super().__init__(layer)
        grid = scheme.weight
        self.site, self.grid, self.options = site, grid, options
        self.input_bits = None if scheme.activation is None else scheme.activation.bits
        parameter = getattr(layer, site.parameter)
        parameter.requires_grad_(False)
        self.dtype = parameter.dtype
        weight = site.layout.to_matrix(parameter.detach())
        if not bool(weight.isfinite().all()):
            raise QuantizationError(f"{site.name} holds NaN or infinity.")
        scale = fit_scale(weight, grid)
        self.logits = nn.Parameter(warm_logits(weight, scale, grid))
        self.log_scale = nn.Parameter(torch.zeros_like(scale))
        self.register_buffer("first_scale", scale)
        self.register_buffer("first_codes", self.logits.argmax(0).to(torch.uint8))
        self.temperature, self.discrete = 1.0, False

    @property
    def weight(self) -> Tensor:
        """The weight in the layer's own form, for the forward and for model code that asks for its dtype or device."""
        wide = torch.promote_types(self.dtype, torch.float32)
        if self.training and math.isfinite(self.temperature):
            codes = MeanCode.apply(self.logits, self.temperature, self.discrete)  # type: ignore[no-untyped-call]
        else:
            codes = self.logits.argmax(0)
        width = self.grid.group_width(codes.shape[-1])
        scale = self.scale().to(wide)
        spread = scale if scale.shape[-1] == 1 else scale.repeat_interleave(width, dim=-1)
        matrix = rounded_to((codes.to(wide) - zero_of(self.grid)) * spread, self.dtype)
        held = getattr(self.layer, self.site.parameter).dtype
        return self.site.layout.from_matrix(matrix, self.site.shape).to(held)

    def scale(self) -> Tensor:
        """s, float32 [out, groups], rounded to the dtype it is stored in."""
        return rounded_to(self.first_scale * self.log_scale.exp(), self.dtype)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the layer gives with this weight."""
        if self.input_bits is not None:
            inputs = with_rounded_inputs(inputs[0], self.dtype, self.input_bits), *inputs[1:]
        return functional_call(self.layer, {self.site.parameter: self.weight}, inputs, named)

    def anneal(self, progress: float) -> None:
        """T = 1 first, then rising in equal ratios to its highest, where weights become discrete; infinite at last."""
        options = self.options
        share = (progress - options.anneal_from) / (options.discrete_from - options.anneal_from)
        self.discrete = share >= 1
        hard = progress >= options.harden_at
        self.temperature = math.inf if hard else options.temperature ** min(1.0, max(0.0, share))

    def groups(self) -> Sequence[ParameterGroup]:
        """The logits, whose size does not go with the weights'."""
        return (ParameterGroup(parameters=(self.logits,), rate=self.options.logits_rate),)

    def quantized(self) -> QuantizedTensor:
        """The weight as codes, with the scale in the layer's dtype."""
        codes = self.logits.detach().argmax(0).to(torch.uint8)
        scale = self.scale().detach().to(self.dtype)
        zero = None if self.grid.symmetric else torch.full_like(scale, zero_of(self.grid), dtype=torch.float32)
        return QuantizedTensor(codes=codes, scale=scale, zero=zero, grid=self.grid)


@dataclass(frozen=True, kw_only=True)
class SLB(TrainedQuantizer):
    """Search for low-bit weights (arXiv 2009.08695): train probabilities of levels, sharpen them, keep the likeliest.

    Each weight is W = s·(Σ_k P_k·k − zero), P = softmax(T·A). T is 1 at first and rises to ``temperature``. Then the
    network computes with the likeliest levels, and A goes on learning with the gradient of the mean; at last levels are
    fixed and only scales, norms, biases and the layers left in float learn. Unlike the paper's, the search has that
    second phase, and starts from the pretrained weights: A = −2·(w/s + zero − k)², under which the network is what it
    was. The levels of an asymmetric scheme are evenly spaced from −α to α without 0, as in the paper (two levels at one
    bit); those of a symmetric one contain 0.

    Attributes:
        training: How long and how fast to train; the rate is that of all that is no logit.
        ends: Whether to take the first and the last layer, too, in the order of the modules. They are the embedding and
            the output head where the model has them.
        logits_rate: The learning rate of the logits A at its highest.
        temperature: The highest T.
        anneal_from: Share of the training after which T rises.
        discrete_from: Share of the training after which T is at its highest and weights are one-hot; the same as
            ``harden_at`` for the paper's search, which wants a ``temperature`` of 30 or more.
        harden_at: Share of the training after which levels are fixed.
    """

    name: ClassVar[str] = "slb"

    scheme: Scheme | str = "w4a16-channel-asym"
    training: TrainingOptions = field(default_factory=TrainingOptions)
    ends: bool = False
    logits_rate: float = 2e-2
    temperature: float = 4.0
    anneal_from: float = 0.0
    discrete_from: float = 0.25
    harden_at: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.anneal_from < self.discrete_from <= self.harden_at <= 1:
            raise RecipeError(
                f"anneal_from, discrete_from and harden_at are shares of the training, the first below the others and "
                f"the last not below them, not {self.anneal_from}, {self.discrete_from} and {self.harden_at}."
            )
        if not 1 <= self.temperature < math.inf or not 0 < self.logits_rate < math.inf:
            raise RecipeError(
                f"temperature is at least 1 and logits_rate positive, both finite, not {self.temperature} and "
                f"{self.logits_rate}."
            )
        for scheme in self.schemes():
            if scheme.static_input:
                raise RecipeError(
                    f"slb trains with activations in float or rounded for each token, and {scheme.label} gives them "
                    "one scale; use a scheme such as w4a8-dynamic-g128."
                )
            if scheme.activation is not None and not scheme.activation.integers:
                raise RecipeError(
                    f"slb trains with activations in float or rounded to integers, and {scheme.label} rounds them to "
                    f"{scheme.activation.element}; use a scheme such as w4a8-dynamic-g128."
                )
            if not scheme.weight.plain:
                raise RecipeError(
                    f"slb trains integer codes with float scales, and {scheme.label} has none; use gptq or awq for it."
                )

    @property
    def fractional_zeros(self) -> bool:
        """True where a grid is asymmetric: its zero then lies between two codes."""
        return any(not scheme.weight.symmetric for scheme in self.schemes())

    def sites(self, network: Network) -> Sequence[Site]:
        """The targeted sites that are linear layers or 2-D convolutions, without the first and last layer.

        Raises:
            RecipeError: A targeted weight is of another kind, or nothing is left.
        """
        chosen = super().sites(network)
        for site in chosen:
            if site.layout not in _LAYOUTS:
                raise RecipeError(
                    f"{site.name} is of the kind {site.layout.value}, and slb trains linear layers and 2-D "
                    "convolutions; exclude it."
                )
        spared = self.spared(network)
        left = [site for site in chosen if site.parameter_name not in spared]
        if not left:
            raise RecipeError(
                "slb leaves the first and the last layer in float, and there is no other; set ends: true."
            )
        return left

    def spared(self, network: Network) -> dict[str, str]:
        """The first and the last layer."""
        sites = network.sites
        if self.ends or not sites:
            return {}
        roles = {site.role for site in sites}
        first = [] if "embedding" in roles else [(sites[0], "first")]
        last = [] if "head" in roles else [(sites[-1], "last")]
        return {
            site.parameter_name: f"{which} layer: slb leaves it in float unless 'ends: true'"
            for site, which in first + last
        }

    def wrap(self, site: Site, layer: nn.Module, scheme: Scheme) -> SoftLayer:
        """The stand-in of a layer.

        Raises:
            QuantizationError: Its weight holds NaN or infinity.
        """
        return SoftLayer(layer, site, scheme, self)

    def solve(self, site: Site, weight: Tensor, state: TrainableWrapper | None, scheme: Scheme) -> Sequence[Edit]:
        """One ``Quantize`` edit: the likeliest levels of a trained stand-in.

        Raises:
            QuantizationError: There is none.
        """
        if not isinstance(state, SoftLayer):
            raise QuantizationError("SLB decides by training, and the layer was not trained.")
        tensor = state.quantized()
        moved = (tensor.codes != state.first_codes).double().mean().item()
        notes = {"codes_moved": moved}
        return [Quantize(site=site.name, scheme=scheme, tensor=tensor, algorithm=self.name, notes=notes)]
