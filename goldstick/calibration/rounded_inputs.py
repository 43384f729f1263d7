"""What layers with quantized activations are going to be given, while they are still float."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from goldstick.core.edits import Quantize
from goldstick.core.rounded_inputs import quantized_input
from goldstick.core.straight_through import passing
from goldstick.structure.network import Network, Site
from goldstick.structure.plain_layers import Reading


class RoundedInputs:
    """Hooks that round the inputs of float layers as the packed ones will; gradients pass the rounding.

    They come behind all other hooks. Inputs of experts that are stored together, of convolutions, and of layers whose
    forward makes something else of them first, stay as they are.

    Args:
        network: The network.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._hooks: list[RemovableHandle] = []

    def begin(self, edits: Iterable[Quantize]) -> None:
        """Round from now on what the layers of these edits are given, where their schemes say so."""
        for edit in edits:
            site = self._network.by_name[edit.site]
            if edit.scheme.activation is not None and _multiplies_input(site):
                hook = _hook(_rounding(edit, edit.scheme.activation.input_name))
                self._hooks.append(self._network.module(site).register_forward_pre_hook(hook, with_kwargs=True))

    def end(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def _multiplies_input(site: Site) -> bool:
    return site.layout.multiplied and not site.layout.fused and site.reading is Reading.INPUT


def _rounding(edit: Quantize, activation: str) -> Callable[[Tensor], Tensor]:
    """x → x as the layer will multiply it, in x's dtype."""
    like = edit.tensor.scale  # ranges are kept in the processor's memory
    dtype, device = like.dtype, like.device
    scale = None if edit.input_scale is None else edit.input_scale.to(device, dtype).reshape(1)
    zero = None if edit.input_zero is None else edit.input_zero.to(device).reshape(1)

    def rounded(x: Tensor) -> Tensor:
        found = quantized_input(x.detach().to(dtype), activation, scale, zero).to(x.dtype)
        return passing(x, found) if torch.is_grad_enabled() else found

    return rounded


def _hook(rounded: Callable[[Tensor], Tensor]) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """What a layer is called with, its first tensor rounded."""

    def hook(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (rounded(args[0]), *args[1:]), kwargs
        name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
        return args, kwargs | {name: rounded(kwargs[name])}

    return hook
