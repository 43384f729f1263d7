"""Edits applied to a network: what recipes do to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from goldstick.core.edits import Edit, Fold, FoldNorm, Prune, Quantize, Rotate, SetWeight
from goldstick.core.input_rotation import release_input
from goldstick.core.layout import Layout
from goldstick.core.qtensor import QuantizedTensor
from goldstick.errors import StructureError
from goldstick.nn import (
    PackedWeight,
    QuantizedConvolution,
    QuantizedEmbedding,
    QuantizedLinear,
)
from goldstick.nn.derived import derived, in_place_of, name_in_the_way, refuse_function, sharing, tied_to, turn_into
from goldstick.nn.encoder import PaddedEncoder
from goldstick.nn.own_names import refuse_taken, taken_name
from goldstick.nn.parameter import hold_parameter, parameter_name_in_the_way
from goldstick.nn.replacing import itself, replace
from goldstick.nn.scaled_linear import LearnedWeight, can_learn_scales, learn_scales, settle
from goldstick.structure.network import Network, Site
from goldstick.structure.norm_folding import fold_norm
from goldstick.structure.plain_layers import Reading
from goldstick.structure.probe.fold import apply_fold
from goldstick.structure.pruning.cut import apply_cut
from goldstick.structure.rotation.rotate_weight import apply_rotation


def apply(network: Network, edits: Iterable[Edit]) -> None:
    """Apply edits in their order, in place.

    Raises:
        StructureError: An edit names a site that the network does not have, or that was quantized already.
    """
    for edit in edits:
        match edit:
            case Quantize():
                _quantize(network, edit)
            case SetWeight():
                site = _site(network, edit.site)
                parameter = _float_parameter(network.module(site), site)
                parameter.data.copy_(site.layout.from_matrix(edit.weight, parameter.shape))
            case Fold():
                apply_fold(network.model, edit, [_site(network, name) for name in edit.consumers])
            case Rotate():
                apply_rotation(network.model, edit)
                if edit.unties:
                    forget_ties(network)
            case FoldNorm():
                fold_norm(network.model.get_submodule(edit.convolution), network.model.get_submodule(edit.norm))
                replace(network.model, edit.norm, nn.Identity())
            case Prune():
                apply_cut(network.model, edit)  # the network's sites have other shapes then: make a new Network


def refuse_modules(network: Network, names: Iterable[str]) -> None:
    """Refuse to quantize sites whose modules no quantized layer can stand for, before anything is done to them.

    Raises:
        StructureError: A module has something of its own under a name of quantized layers, or a function in the place
            of its forward; the message says which.
    """
    names = list(names)
    weights = [site for name in names if not _held_in_parameter(site := network.by_name[name])]
    refuse_function({site.name: network.module(site) for site in weights})
    taken = {name: found for name in names if (found := _name_in_the_way(network, network.by_name[name]))}
    if taken:
        first = next(iter(taken))
        refuse_taken(taken[first], network.module(network.by_name[first]), list(taken))


def replace_module(network: Network, site: Site, module: nn.Module) -> None:
    """Let a module take the place of the one that holds a site's weight: a wrapper, or the layer again.

    Raises:
        StructureError: The model is itself the layer.
    """
    replace(network.model, site.module, module)


def tie(network: Network, site: Site, owner: Site) -> None:
    """Let a site run on the quantized weight that it is tied to."""
    source, old = network.module(owner), network.module(site)
    if not isinstance(source, PackedWeight):
        raise StructureError(f"{site.name} is tied to {owner.name}, which is not quantized.")
    if isinstance(source, QuantizedEmbedding) and site.layout is not Layout.EMBEDDING:
        turn_into(old, tied_to(old, source))
    else:
        turn_into(old, sharing(_KINDS.get(site.layout, PackedWeight), old, source))


def scale_anew(
    network: Network, sites: Iterable[Site], rate: float, stored: Mapping[str, torch.dtype | None]
) -> dict[str, LearnedWeight]:
    """Let quantized linear layers become such whose scales learn; :func:`settle_scales` ends that.

    Args:
        network: The network.
        sites: Which layers; those that compute otherwise, or whose scales cannot learn, stay as they are.
        rate: The learning rate of the scales' logarithms.
        stored: Site name → the dtype in which its scales are stored; their own where ``None``.

    Returns:
        Site name → the weight that learns.
    """
    found: dict[str, LearnedWeight] = {}
    for site in sites:
        layer = network.module(site)
        if can_learn_scales(layer) and isinstance(layer, QuantizedLinear):
            found[site.name] = learn_scales(layer, rate, stored[site.name])
    return found


def settle_scales(
    network: Network, learned: Mapping[str, LearnedWeight], *, as_they_were: bool = False
) -> dict[str, QuantizedTensor]:
    """Give the layers the scales that were learned, or those they had, for good; site name → the weight."""
    found: dict[str, QuantizedTensor] = {}
    for name, weight in learned.items():
        layer = network.module(network.by_name[name])
        assert isinstance(layer, QuantizedLinear)
        settle(layer, weight.at_first() if as_they_were else weight.settled())
        found[name] = layer.quantized_tensor()
    return found


def forget_ties(network: Network, sites: Collection[str] | None = None) -> None:
    """Tell a transformers model not to tie weights again: they are modules now, or their ties were cut.

    Args:
        network: The network.
        sites: Names of the tied sites, none of them at an embedding; all that is tied where ``None``.
    """
    model: Any = network.model
    if sites is not None:
        gone = {network.by_name[name].parameter_name for name in sites}
        keys = getattr(model, "all_tied_weights_keys", None) or {}
        if keys:
            owners = network.tied()
            model.all_tied_weights_keys = {
                name: source
                for name, source in keys.items()
                if not {name, source} & gone and owners.get(name, name) not in {owners.get(one) for one in gone}
            }
        return
    if hasattr(model, "config") and hasattr(model.config, "tie_word_embeddings"):
        model.config.tie_word_embeddings = False
    if hasattr(model, "all_tied_weights_keys"):
        model.all_tied_weights_keys = {}


def _quantize(network: Network, edit: Quantize) -> None:
    site = _site(network, edit.site)
    module = network.module(site)
    _float_parameter(module, site)
    if _held_in_parameter(site):
        if edit.input_scale is not None or edit.input_multiplier is not None:
            raise StructureError(f"{site.name} is read by the forward of its module: nothing can be done to its input.")
        hold_parameter(module, site.parameter, edit.tensor, edit.scheme, site.layout, indexed=_indexed(site))
    elif not site.module:
        raise itself(module)
    else:
        inputs = {
            "input_scale": edit.input_scale,
            "input_zero": edit.input_zero,
            "input_multiplier": edit.input_multiplier,
            "rotated": release_input(module) or None,
        }
        new = in_place_of(
            _KINDS.get(site.layout, PackedWeight), module, edit.tensor, edit.scheme, site.layout, **inputs
        )
        turn_into(module, new)
    if site.layout.fused:
        index_experts_one_by_one(network.model)
    _leave_shortcuts(network, site)


def _name_in_the_way(network: Network, site: Site) -> str | None:
    module = network.module(site)
    if isinstance(module, PackedWeight):
        return None
    if _held_in_parameter(site):
        return parameter_name_in_the_way(module, site.parameter, indexed=_indexed(site))
    return name_in_the_way(_KINDS.get(site.layout, PackedWeight), module)


def _held_in_parameter(site: Site) -> bool:
    """Whether the module goes on computing, and reads its parameter from a packed weight."""
    return site.parameter != "weight" or site.layout.fused


def _indexed(site: Site) -> bool:
    """Whether a forward takes one matrix of a parameter at a time."""
    return site.product and site.reading is not Reading.STACK


def leave_nested_tensors(model: nn.Module, sites: Iterable[Site]) -> None:
    """Let torch's encoders that hold some sites give their layers padded rows, not nested tensors."""
    for path in {site.module for site in sites}:
        names = path.split(".")
        for length in range(len(names)):
            module: Any = model.get_submodule(".".join(names[:length]))
            if isinstance(module, nn.TransformerEncoder) and not isinstance(module, PaddedEncoder):
                refuse_taken(taken_name(PaddedEncoder, module), module)
                module.__class__ = derived(PaddedEncoder, type(module))
                PaddedEncoder.take_over(module)  # type: ignore[arg-type]


def _site(network: Network, name: str) -> Site:
    if name not in network.by_name:
        raise StructureError(f"The network has no site {name!r}.")
    return network.by_name[name]


def _float_parameter(module: nn.Module, site: Site) -> nn.Parameter:
    # Not any tensor will do: a quantized layer gives its dequantized numbers as ``weight``.
    parameter = getattr(module, site.parameter, None)
    if not isinstance(parameter, nn.Parameter):
        raise StructureError(f"{site.name} was quantized already.")
    return parameter


def index_experts_one_by_one(model: nn.Module) -> None:
    """Let a transformers model take its experts one at a time.

    It may otherwise run them all as one grouped product over the fused float parameter, which quantizing removes.
    """
    choose: Callable[[str], None] | None = getattr(model, "set_experts_implementation", None)
    if callable(choose):
        choose("eager")


def _leave_shortcuts(network: Network, site: Site) -> None:
    """Let torch's own encoder layer call the layers it is made of, not one function with all their weights."""
    leave_nested_tensors(network.model, [site])
    names = site.module.split(".")
    for length in range(1, len(names)):
        module: Any = network.model.get_submodule(".".join(names[:length]))
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # the shortcut is for activations it knows


_KINDS: dict[Layout, type[PackedWeight]] = {
    Layout.LINEAR: QuantizedLinear,
    Layout.TRANSPOSED: QuantizedLinear,
    Layout.CONVOLUTION: QuantizedConvolution,
    Layout.EMBEDDING: QuantizedEmbedding,
}
