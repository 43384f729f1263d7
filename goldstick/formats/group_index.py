"""Group index: GPTQ's ``g_idx`` int32 [in], which says of every input of a layer what group it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from goldstick.core.grid import Grid
from goldstick.errors import FormatError
from goldstick.formats.base import StoredTensor


def needs_group_index(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> str | None:
    """Why no layer of a checkpoint may be without one; ``None`` where its writer has left all of them out.

    Without one, groups are consecutive inputs, which is what a ``desc_act`` of false promises.

    Args:
        config: The ``quantization_config``.
        tensors: Every tensor of the checkpoint.
    """
    if any(name.endswith(".g_idx") for name in tensors):
        return "other layers have one"
    if config.get("desc_act"):
        return "its config says desc_act, so that groups take their inputs from all over the row"
    return None


def is_act_order(g_idx: Tensor, grid: Grid) -> bool:
    """Whether a ``g_idx`` [in] takes the inputs of a group from here and there, so that a layer is ``act_order``."""
    return runs(g_idx, grid, len(g_idx)) is None


def consecutive(in_features: int, grid: Grid, device: torch.device) -> Tensor:
    """The group of every input where groups are consecutive inputs, int32 [in]."""
    return torch.arange(in_features, dtype=torch.int32, device=device) // grid.group_width(in_features)


def runs(g_idx: Tensor, grid: Grid, in_features: int) -> Tensor | None:
    """Which stored group every run of consecutive inputs belongs to, int64 [groups]; ``None`` if there are no runs."""
    width = min(grid.group_width(in_features), in_features)
    groups = g_idx[::width].long()
    unbroken = torch.equal(groups.repeat_interleave(width)[:in_features], g_idx.long())
    known = int(groups.min()) >= 0 and int(groups.max()) < len(groups)
    return groups if unbroken and known else None


def scattered(g_idx: Tensor, grid: Grid) -> Tensor:
    """The inputs in the order of their groups, int64 [in]; within a group as they come."""
    width = min(grid.group_width(len(g_idx)), len(g_idx))
    order = g_idx.argsort(stable=True)
    if not torch.equal(g_idx[order].long(), torch.arange(len(g_idx), device=g_idx.device) // width):
        raise FormatError(
            f"its g_idx does not make groups of {width} inputs, numbered from 0, as its config calls for; the "
            "checkpoint is damaged, or declares another group size than it has."
        )
    return order
