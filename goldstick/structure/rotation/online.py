"""Let layers turn what they are given when they run, their weights being turned already."""

from __future__ import annotations

from goldstick.core.input_rotation import LARGEST_TRANSFORM, rotate_input
from goldstick.errors import StructureError
from goldstick.structure.network import Network, Site
from goldstick.structure.rotation.plan import RotationPlan


def turn_input(network: Network, site: Site, size: int) -> None:
    """Let a float layer, and the packed one that takes its place, turn what it is given in blocks; 0 for not.

    Raises:
        StructureError: The layer is no product with what it is given, or its inputs are no whole number of blocks.
    """
    if not size:
        return
    fits = site.in_features % size == 0 and size & (size - 1) == 0 and size <= LARGEST_TRANSFORM
    if not fits or not site.layout.multiplied or site.parameter != "weight":
        raise StructureError(
            f"What {site.name} of {site.in_features} inputs is given cannot be turned in blocks of {size}."
        )
    rotate_input(network.module(site), size)


def turn_inputs(network: Network, plan: RotationPlan) -> None:
    """Do so with every layer of a plan, wherever its weight is: before what follows what is found out by trying."""
    sites = {site.parameter_name: site for site in network.sites}
    for parameter, size in plan.inputs.items():
        turn_input(network, sites[parameter], size)
