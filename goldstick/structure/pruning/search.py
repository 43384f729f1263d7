"""Which channels of a network can be cut together: block by block where that is enough, or else as a whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from goldstick.errors import StructureError
from goldstick.structure.network import Network
from goldstick.structure.probe.double import double_precision
from goldstick.structure.probe.input_groups import block_signature
from goldstick.structure.pruning.channel_masking import MaskedModel
from goldstick.structure.pruning.probe import find_in, holds_in
from goldstick.structure.pruning.prunable import Prunable
from goldstick.structure.trace import Arguments, capture_inputs

#: Groups of channels, and for layers whose channels cannot be cut: path → why not.
Found = tuple[list[Prunable], dict[str, str]]


def find_prunable(network: Network, args: tuple[Any, ...], kwargs: dict[str, Any], *, layers: Collection[str]) -> Found:
    """The channels of a network that can be cut together.

    A network with repeated blocks is looked at block by block: what is found in the first of each kind is tried in the
    others of its kind, and these are looked at where it does not hold. Where that leaves nothing, or batch norms that
    give zeros, channels may be read outside the block that makes them: then, and where there are no blocks, it is
    looked at as a whole.

    Args:
        network: The network, in memory; not changed.
        args: Positional arguments of its forward; two samples are enough.
        kwargs: Keyword arguments.
        layers: Paths of the layers whose output channels may be cut.

    Returns:
        The groups, in the order of the layers, and for layers whose channels cannot be cut: path → why not.

    Raises:
        StructureError: The network does not run on the arguments, or gives other outputs each time.
    """
    candidates = [site.module for site in network.sites if site.module in layers and site.parameter == "weight"]
    every = [site.module for site in network.sites if site.parameter == "weight" and site.role == "inner"]
    if not network.blocks:
        return _find_in_whole(network, args, kwargs, candidates, every)
    found: Found | StructureError
    try:
        found = _find_by_blocks(network, args, kwargs, candidates, every)
        if found[0] and all(group.scattered is None for group in found[0]):
            return found
    except StructureError as error:  # a member of a list that is not called, or not as a module
        found = error
    try:
        return _find_in_whole(network, args, kwargs, candidates, every)
    except Exception as error:  # any code of a network may fail in float64; what was found in its blocks then stands
        if isinstance(found, StructureError):
            raise found from error
        return found


def _find_in_whole(
    network: Network, args: tuple[Any, ...], kwargs: dict[str, Any], candidates: Sequence[str], every: Sequence[str]
) -> Found:
    with double_precision():
        return find_in(MaskedModel(network.model, args, kwargs), candidates, every)


def _find_by_blocks(
    network: Network, args: tuple[Any, ...], kwargs: dict[str, Any], candidates: Sequence[str], every: Sequence[str]
) -> Found:
    groups: list[Prunable] = []
    refused: dict[str, str] = {}
    firsts: dict[object, Found] = {}  # of paths within the block
    wanted = [block for block in network.blocks if any(path.startswith(f"{block}.") for path in candidates)]
    given = capture_inputs(network.model, wanted, kwargs, args=args) if wanted else {}
    outside = dict.fromkeys(candidates, "it lies outside the repeated blocks")
    for block in wanted:
        inside = [path for path in candidates if path.startswith(f"{block}.")]
        relative = [path.removeprefix(f"{block}.") for path in inside]
        signature, module = (block_signature(network, block), tuple(relative)), network.model.get_submodule(block)
        here = firsts.get(signature)
        if here is None or not _hold_in_block(module, given[block], here[0]):
            others = [path.removeprefix(f"{block}.") for path in every if path.startswith(f"{block}.")]
            here = _find_in_block(module, given[block], relative, others)
            firsts.setdefault(signature, here)
        groups += [group.moved("", f"{block}.") for group in here[0]]
        refused |= {f"{block}.{path}": reason for path, reason in here[1].items()}
        for path in inside:
            outside.pop(path)
    return groups, refused | outside


def _hold_in_block(block: nn.Module, given: Arguments, groups: Sequence[Prunable]) -> bool:
    """Whether what was found in a block of the same layers is true of this one, whose forward may go another way."""
    try:
        with double_precision():
            return not groups or holds_in(MaskedModel(block, *given), groups)
    except Exception:  # any code of a block may fail, in any way
        return False


def _find_in_block(block: nn.Module, given: Arguments, candidates: Sequence[str], every: Sequence[str]) -> Found:
    try:
        with double_precision():
            return find_in(MaskedModel(block, *given), candidates, every)
    except Exception as error:  # any code of a block may fail in float64, as grouped products of experts do
        return [], dict.fromkeys(candidates, f"its block cannot be tried: {type(error).__name__}: {error}")
