"""Splits: group sizes that no tensor-parallel server can cut."""

from __future__ import annotations

from collections.abc import Iterator

from goldstick.jobs.doctor.examined import Examined
from goldstick.jobs.doctor.finding import Finding


def split_findings(examined: Examined) -> Iterator[Finding]:
    """Layers of which not even half a row is whole groups.

    A layer that is split over its inputs, as every second one is, gives each of 2, 4 or 8 devices in / n inputs, which
    must be whole groups. Where a split in 2 does not work, none of the others does.
    """
    blocks = {site.name for site in examined.network.sites if site.block is not None}
    where = []
    for layer in examined.layers:
        size, inputs = layer.scheme.weight.group_size, layer.shape[-1]
        if layer.site in blocks and size is not None and size < inputs and inputs % (2 * size):
            where.append(f"{layer.name}: {inputs} inputs in groups of {size}")
    if where:
        yield Finding(
            severity="remark",
            check="splits",
            what="no split over 2, 4 or 8 devices holds whole groups",
            where=tuple(where),
            remedy="serve it on one device, or quantize with a group size that divides half the inputs",
        )
