"""The blocks of a model that may be gone through one after another, each alone in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.calibration.arguments import block_calls
from goldstick.calibration.end_gradients import FloatBlocks
from goldstick.errors import StructureError
from goldstick.structure.network import Network, Site
from goldstick.structure.trace import tensors_in

Row = Mapping[str, Any]


def find_chain(network: Network, row: Row, floats: FloatBlocks) -> tuple[str, ...]:
    """The blocks of a model that a sweep may go through one after another; none where it may not.

    They feed one another, and what lies before them reaches the rest of the model through the hidden state alone.

    Args:
        network: The model, in float32.
        row: Keyword arguments of its forward, with ``use_cache`` off.
        floats: Loads its blocks.
    """
    blocks = network.blocks
    if not blocks or len({block.rpartition(".")[0] for block in blocks}) > 1:
        return ()
    besides: list[Tensor] = []  # what blocks are given that depends on weights outside, and is not the hidden state

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        others = {name: value for name, value in kwargs.items() if name != "hidden_states"}
        given = args if "hidden_states" in kwargs else args[1:]
        besides.extend(tensor for tensor in tensors_in((given, others)) if tensor.requires_grad)

    floats.load(blocks[0])
    outside = [parameter_of(network, site) for site in network.sites if site.block not in blocks]
    with ExitStack() as stack:
        for block in blocks:
            handle = network.model.get_submodule(block).register_forward_pre_hook(look, with_kwargs=True)
            stack.callback(handle.remove)
        stack.enter_context(torch.enable_grad())
        stack.enter_context(learning(outside))
        try:
            block_calls(network.model, blocks, row)
        except StructureError:
            return ()
    return () if besides else tuple(blocks)


def parameter_of(network: Network, site: Site) -> nn.Parameter:
    """The parameter of a site."""
    found: nn.Parameter = getattr(network.module(site), site.parameter)
    return found


@contextmanager
def learning(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Inside the context gradients are taken in these parameters."""
    before = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, was in zip(parameters, before, strict=True):
            parameter.requires_grad_(was)
