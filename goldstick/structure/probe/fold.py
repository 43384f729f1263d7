"""Apply a fold: divide the channels that a producer puts out, multiply the columns that read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from goldstick.core.edits import Fold
from goldstick.core.layout import Layout
from goldstick.errors import StructureError
from goldstick.structure.network import Site, layout_of

#: Finds a module by its path in the model.
Lookup = Callable[[str], nn.Module]


@torch.no_grad()
def apply_fold(modules: nn.Module | Lookup, fold: Fold, consumers: Sequence[Site]) -> None:
    """Move a per-channel scale s from a producer into its consumers, in place.

    With y = producer(x) and z = W·y:  y ← y / s,  W ← W·diag(s),  so z stays. A norm's gain g and shift b
    become g/s and b/s (with ``unit_offset`` its stored weight w becomes (1 + w)/s − 1); rows and bias of a
    linear layer are divided. Computed in float32 and stored in the parameter's own dtype. All shapes are
    checked before anything is changed. Whether nothing else reads y is the caller's affair: ``probe_block``
    finds out.

    Args:
        modules: The model, or a function from paths to modules.
        fold: What to do. The producer is the path of a module, or the name of a fused-experts parameter.
        consumers: The sites named in ``fold.consumers``.

    Raises:
        StructureError: Shapes do not fit, the producer has no output channels, or s is not positive.
    """
    lookup: Lookup = modules.get_submodule if isinstance(modules, nn.Module) else modules
    if tuple(site.name for site in consumers) != fold.consumers:
        raise StructureError(
            f"The fold from {fold.producer} names the consumers {', '.join(fold.consumers)}, but was handed "
            f"{', '.join(site.name for site in consumers)}."
        )
    scale = fold.scale.detach().to(torch.float32)
    if scale.ndim != 1 or not bool((scale.isfinite() & (scale > 0)).all()):
        raise StructureError(
            f"The scale to fold from {fold.producer} into {', '.join(fold.consumers)} must be a vector of "
            f"positive numbers; its shape is {list(scale.shape)} and its least value {scale.min().item():g}."
        )
    producer = find_producer(lookup, fold.producer)
    if not 0 <= fold.first_channel <= producer.channels - scale.numel():
        raise _misfit(fold, f"{fold.producer} puts out {producer.channels} channels, from {fold.first_channel} on")
    for site in consumers:
        if input_channels(lookup(site.module), site) != scale.numel():
            raise _misfit(fold, f"{site.name} takes {input_channels(lookup(site.module), site)} channels")
    producer.divide(scale, fold.first_channel, unit_offset=fold.unit_offset)
    for site in consumers:
        multiply_columns(lookup(site.module), site, scale)


@dataclass(frozen=True, kw_only=True)
class Producer:
    """A module seen as something that puts out channels.

    Attributes:
        name: Path of the module, or name of the fused-experts parameter.
        weight: The parameter: [channels] of a norm, or a matrix in some layout.
        bias: [channels] (or [experts, channels]), or ``None``.
        layout: How ``weight`` stores its matrix; ``None`` for a norm.
    """

    name: str
    weight: Tensor
    bias: Tensor | None
    layout: Layout | None

    @property
    def channels(self) -> int:
        """How many channels it puts out."""
        return self.weight.numel() if self.layout is None else self.layout.to_matrix(self.weight).shape[-2]

    def divide(self, scale: Tensor, first: int, *, unit_offset: bool = False) -> None:
        """Divide the output channels ``first`` … by ``scale``, in place."""
        chosen = slice(first, first + scale.numel())
        scale = scale.to(self.weight.device)
        if self.layout is None:
            offset = 1.0 if unit_offset else 0.0
            gain = self.weight[chosen]
            gain.copy_((gain.float() + offset) / scale - offset)
        else:
            # A convolution's weight may lie channels-last; its matrix would then be a copy.
            is_conv = self.layout is Layout.CONVOLUTION
            rows = self.weight[chosen] if is_conv else self.layout.to_matrix(self.weight)[..., chosen, :]
            rows.copy_(rows.float() / (scale.view(-1, *[1] * (self.weight.ndim - 1)) if is_conv else scale.view(-1, 1)))
        if self.bias is not None:
            shift = self.bias[..., chosen]
            shift.copy_(shift.float() / scale)


def find_producer(lookup: Lookup, name: str) -> Producer:
    """The producer of that name.

    Raises:
        StructureError: It has no weight of which the rows, or the elements, are output channels.
    """
    parent, _, last = name.rpartition(".")
    fused = getattr(lookup(parent), last, None) if parent else None
    if isinstance(fused, nn.Parameter):
        module, parameter, bias = lookup(parent), last, getattr(lookup(parent), f"{last}_bias", None)
    else:
        module, parameter = lookup(name), "weight"
        bias = getattr(module, "bias", None)
    weight = getattr(module, parameter, None)
    layout = layout_of(module, parameter, weight) if isinstance(weight, nn.Parameter) else None
    if not isinstance(weight, nn.Parameter) or (layout is None and weight.ndim != 1):
        raise StructureError(
            f"{name} ({type(module).__name__}) cannot absorb a scale: it is neither a norm nor a linear "
            "layer with a float weight."
        )
    if layout is Layout.EMBEDDING:
        raise StructureError(f"{name} is an embedding: its columns, not its rows, are output channels.")
    return Producer(name=name, weight=weight, bias=bias if isinstance(bias, Tensor) else None, layout=layout)


def input_channels(module: nn.Module, site: Site) -> int:
    """How many channels a site reads: its columns, or the input channels of a convolution."""
    return module.in_channels if isinstance(module, _ConvNd) else site.in_features


@torch.no_grad()
def multiply_columns(module: nn.Module, site: Site, scale: Tensor) -> None:
    """Multiply the columns of a site in ``module``, in place, by ``scale`` [channels]."""
    parameter = getattr(module, site.parameter)
    scale = scale.to(parameter.device)
    if isinstance(module, _ConvNd):  # [out, in / groups, *kernel]
        per_group = scale.reshape(module.groups, 1, -1, *[1] * (parameter.ndim - 2))
        grouped = parameter.view(module.groups, -1, *parameter.shape[1:])
        grouped.copy_(grouped.float() * per_group)
    else:
        matrix = site.layout.to_matrix(parameter)  # [..., out, in], a view
        matrix.copy_(matrix.float() * scale)


def _misfit(fold: Fold, fact: str) -> StructureError:
    return StructureError(
        f"A scale of {fold.scale.numel()} channels cannot be folded from {fold.producer} into "
        f"{', '.join(fold.consumers)}: {fact}. Take the producer and consumers from the structure probe."
    )
