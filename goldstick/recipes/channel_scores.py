"""How strong the units of a group are by the network's weights, and strengths that can be compared between groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from goldstick.structure.network import Network
from goldstick.structure.pruning.prunable import Prunable


def comparable(strengths: Sequence[Tensor], groups: Sequence[Prunable]) -> list[Tensor]:
    """Strengths of one kind: as they are where all groups have batch norms, else each group's divided by its mean.

    |γ| of batch norms can be compared between layers. Root mean squares and norms of weights depend on how wide and
    how deep a layer lies, and are of another size than |γ|.

    Args:
        strengths: Of each group, ≥ 0 [units].
        groups: The groups.
    """
    if all(group.norm is not None for group in groups):
        return list(strengths)
    means = [float(values.double().mean()) for values in strengths]
    return [values / mean if mean > 0 else values for values, mean in zip(strengths, means, strict=True)]


def magnitude(network: Network, group: Prunable) -> Tensor:
    """|γ| of each unit's batch norm, or without one, the norm of the weights that read the unit.

    Of a unit of several channels, the mean of their |γ|. What norms and readers hold beside the group's channels, as
    behind a concatenation, does not count.

    Returns:
        float64 [units].
    """
    if group.norm is not None:
        units = next(member.units for member in group.members if member.module == group.norm)
        gain = network.model.get_submodule(group.norm)._parameters.get("weight")
        ones = torch.ones(len(units), dtype=torch.float32)
        values = ones if gain is None else gain.detach().abs().cpu()
        return _by_unit(values, units, group.units) / _by_unit(ones, units, group.units)
    squares = torch.zeros(group.units, dtype=torch.float64)
    for member in group.members:
        if member.side == "input":
            matrix = network.weight(network.by_name[member.module]).double().cpu()
            per_channel = matrix.reshape(len(matrix), len(member.units), -1).square().sum((0, 2))
            squares += _by_unit(per_channel, member.units, group.units)
    return squares.sqrt()


def _by_unit(values: Tensor, units: tuple[int, ...], count: int) -> Tensor:
    """The sum of what belongs to each of ``count`` units, float64; a channel of unit −1 belongs to none."""
    owners = torch.tensor(units)
    return torch.zeros(count, dtype=torch.float64).index_add_(0, owners[owners >= 0], values.double()[owners >= 0])
