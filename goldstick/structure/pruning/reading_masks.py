"""Masks on the channels of a group, where layers read them: a mask of 0 is a unit gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.structure.pruning.channel_masking import channel_axis
from goldstick.structure.pruning.prunable import Prunable


@contextmanager
def reading_masks(model: nn.Module, group: Prunable, mask: Tensor) -> Iterator[None]:
    """Inside, what layers read of a group is multiplied by a mask [units + 1], whose last number is of no unit."""
    with ExitStack() as stack:
        for member in group.members:
            if member.side == "input":
                layer, owners = model.get_submodule(member.module), torch.tensor(member.units, device=mask.device)
                hook = partial(_masked, mask, owners)
                stack.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


def _masked(
    mask: Tensor, owners: Tensor, layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The first argument of a layer's forward, masked, whether its place or its name says which it is."""
    values = args[0] if args else next(iter(named.values()))
    axis = channel_axis(layer, values) % values.ndim
    shape = [-1 if index == axis else 1 for index in range(values.ndim)]
    masked = values * mask[owners].to(values.dtype).reshape(shape)
    return ((masked, *args[1:]), named) if args else ((), named | {next(iter(named)): masked})
