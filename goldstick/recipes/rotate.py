"""Rotate: the first thing done to a network, proven before a weight is touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from goldstick import surgery
from goldstick.recipes.found_rotation import FoundRotation
from goldstick.structure.network import Network
from goldstick.structure.rotation.online import turn_inputs
from goldstick.structure.rotation.proof import prove_rotation


def rotate(network: Network, found: FoundRotation, inputs: Mapping[str, Any]) -> tuple[Network, float | None]:
    """Rotate a network in place, after a proof on its own weights where it is small enough for one.

    Args:
        network: The network, in float.
        found: What is to be turned.
        inputs: Some keyword arguments of its forward.

    Returns:
        The network as it is now, with ties that were cut gone, and the error of the proof in float64.

    Raises:
        StructureError: The rotated model would give other outputs.
    """
    error = prove_rotation(network, found.plan, inputs, seed=found.stage.seed)
    surgery.apply(network, found.stage.edits(found.plan))
    return Network(network.model, cut=found.plan.unties), error


def rotate_outside(network: Network, found: FoundRotation) -> None:
    """Rotate what lies outside the blocks of a network, in place, whatever is in memory of the blocks.

    With :func:`rotate_block` of every block this is what :func:`rotate` does, without the proof.
    """
    turn_inputs(network, found.plan)
    surgery.apply(network, found.plan.outer_edits(found.stage.seed))


def rotate_block(network: Network, found: FoundRotation, block: str) -> None:
    """Rotate one block of a network, which is in memory, in place."""
    surgery.apply(network, [found.plan.block_edit(block, found.stage.seed)])
