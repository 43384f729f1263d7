"""Group sizes that do not divide a layer's inputs: what such a layer becomes instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from goldstick.algorithms.base import GroupSizeMismatch
from goldstick.core.scheme import Scheme

#: Sizes that layers fall back to, best first.
SMALLER_GROUPS = (128, 64, 32, 16)
#: What a stage may say of such layers, and what they become.
_WAYS: dict[GroupSizeMismatch, str] = {
    "smaller": "gives them the largest groups of 128, 64, 32 or 16 that divide",
    "channel": "gives them one scale per output channel",
    "skip": "leaves them float",
}


def regrouped(scheme: Scheme, in_features: int, mismatch: GroupSizeMismatch) -> tuple[Scheme, str] | None:
    """The scheme of a layer whose inputs the scheme's groups do not divide, and what it is in words.

    ``smaller``: the largest of 128, 64, 32 and 16 below the group size that divides, one scale per output channel where
    none does. ``channel``: one scale per output channel.

    Args:
        scheme: What the layer would be.
        in_features: Its inputs.
        mismatch: What the stage says of such layers.

    Returns:
        None where nothing is said, and with ``smaller`` for number formats whose blocks have one size.
    """
    if mismatch == "channel":
        return _by_channel(scheme, in_features)
    if mismatch != "smaller":
        return None
    weight, activation = scheme.weight, scheme.activation
    movable = weight.granularity == "group" and weight.scale is None
    if not movable or not (activation is None or activation.divides(in_features)):
        return None
    sizes = [size for size in SMALLER_GROUPS if size < weight.group_width(in_features) and in_features % size == 0]
    if not sizes:
        return _by_channel(scheme, in_features)
    return dataclasses.replace(scheme, weight=dataclasses.replace(weight, group_size=sizes[0])), f"groups of {sizes[0]}"


def ways_out(layers: Iterable[tuple[Scheme, int]]) -> str:
    """What to say of layers that their groups do not divide, of what is of use for all of them.

    Args:
        layers: What each would be, and its inputs.
    """
    unfit = list(layers)
    return ", ".join(
        f"'--group-size-mismatch {way}' {what}"
        for way, what in _WAYS.items()
        if way == "skip" or all(regrouped(scheme, in_features, way) for scheme, in_features in unfit)
    )


def _by_channel(scheme: Scheme, in_features: int) -> tuple[Scheme, str]:
    """A scheme with a scale per channel and token where its groups do not divide, and what became of it."""
    weight, activation = scheme.weight, scheme.activation
    how = []
    if not weight.divides(in_features):
        scale = None if weight.superblock else weight.scale
        weight = dataclasses.replace(weight, granularity="channel", group_size=None, scale=scale)
        how.append("by channel")
    if activation is not None and not activation.divides(in_features):
        activation = Scheme.parse("fp8-dynamic").activation if activation.bits == 8 else None
        how.append("inputs by token" if activation else "weight only")
    return Scheme(weight=weight, activation=activation), ", ".join(how)
