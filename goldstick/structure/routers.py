"""Routers: the layers beside the experts of a mixture that decide, rather than compute."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def routers_beside(model: nn.Module, experts: Mapping[str, int]) -> set[nn.Module]:
    """Linear layers that say which experts run, or how much of an expert is taken.

    What holds the experts holds these, and may hold layers that compute: a shared expert, projections to a smaller
    width and back, in some networks the attention of the block. What computes gives the width that the experts read,
    or one that something else there reads; what decides gives neither. Its errors are those of whole experts, and its
    weights are few.

    Args:
        model: The model.
        experts: Path of each module of fused experts that lies in a repeated block → the width that they read.
    """
    found: set[nn.Module] = set()
    for path, width in experts.items():
        mixture = model.get_submodule(path.rpartition(".")[0])
        own = model.get_submodule(path)
        beside = {child: layers for child in mixture.children() if child is not own and (layers := _linears(child))}
        for child, layers in beside.items():
            read = {width} | {others[0].in_features for other, others in beside.items() if other is not child}
            if not read & {layer.out_features for layer in layers}:
                found.update(layers)
    return found


def _linears(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
