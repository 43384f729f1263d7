"""Records: the report's account of every parameter, for both ways of making a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from goldstick.core.error import WeightError
from goldstick.core.versions import versions
from goldstick.recipes.resolve import Resolution
from goldstick.report import LayerRecord
from goldstick.structure.network import Network

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


def shapes_of(network: Network) -> Shapes:
    """Shape and dtype of every parameter and buffer of a network, in its order."""
    model = network.model
    values = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return {name: (tuple(value.shape), value.dtype) for name, value in values}


def layer_records(
    network: Network,
    shapes: Shapes,
    resolution: Resolution,
    errors: Mapping[str, WeightError],
    before: Mapping[str, int],
    after: Mapping[str, int],
    notes: Mapping[str, Mapping[str, float | str]],
    cut: bool = False,
) -> tuple[LayerRecord, ...]:
    """A record for every parameter and buffer a network had, in its order.

    Args:
        network: The network, with the sites it had before.
        shapes: From :func:`shapes_of`, taken before.
        resolution: What was decided.
        errors: Site name → error of its weight.
        before: Parameter name → bytes before.
        after: Parameter name → bytes after; names that are missing are not stored.
        notes: Site name → what its algorithm found out on the way.
        cut: Whether channels were cut, so that the network's shapes are others than before.
    """
    sites = {site.parameter_name: site for site in network.sites}
    # The sites are those there were before anything was rounded.
    now = dict(shapes_of(network)) if cut else {}
    now |= {name: (tuple(site.shape), site.dtype) for name, site in sites.items()} if cut else {}
    records = []
    for name, (old, dtype) in shapes.items():
        shape = now[name][0] if name in now else old
        site = sites.get(name)
        assignment = resolution.assignments.get(site.name) if site else None
        error = errors.get(site.name) if site else None
        tie = resolution.ties.get(site.name) if site else None
        records.append(
            LayerRecord(
                name=name,
                shape=shape,
                dtype=str(dtype).removeprefix("torch."),
                bytes_before=before.get(name, 0),
                bytes_after=after.get(name, 0),
                scheme=assignment.scheme.label if assignment else None,
                algorithm=assignment.stage.name if assignment else None,
                reason=(assignment.note or None)
                if assignment
                else (f"runs on the quantized {tie}" if tie else resolution.ignored.get(name, "buffer")),
                weight_sqnr_db=error.sqnr_db if error else None,
                max_abs_error=error.max_abs if error else None,
                worst_channels=tuple((channel, decibels) for channel, decibels in error.worst) if error else (),
                notes=(dict(notes.get(site.name, {})) if site else {})
                | ({"shape_before": "×".join(map(str, old))} if shape != old else {}),
            )
        )
    return tuple(records)


def environment() -> dict[str, str]:
    """The versions that a result depends on, and the number of threads, which it does not."""
    return {**versions(), "threads": str(torch.get_num_threads())}
