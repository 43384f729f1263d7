"""The report of a quantized checkpoint that brings none, from its config and file headers."""

from __future__ import annotations

from collections.abc import Mapping

from goldstick.formats.input_scale import part_name
from goldstick.hf.checkpoint import QuantizedCheckpoint
from goldstick.jobs.save.records import environment
from goldstick.report import LayerRecord, Report, SizeSummary


def report_of_files(checkpoint: QuantizedCheckpoint) -> Report:
    """What the files hold, layer by layer; of a quantized layer the size before is that of its scales' dtype."""
    stored = checkpoint.stored
    after = bytes_by_parameter(checkpoint, {name: info.nbytes for name, info in stored.tensors.items()})
    sites = {site.name: site.parameter_name for site in checkpoint.network.sites}
    layers = {sites[layer.site]: layer for layer in stored.layers}
    records = []
    for name, value in checkpoint.network.model.named_parameters(remove_duplicate=False):
        layer = layers.get(name)
        info = stored.tensors.get(name)
        dtype = (layer.scale_dtype if layer else info.dtype if info else None) or value.dtype
        tied = name not in after
        records.append(
            LayerRecord(
                name=name,
                shape=tuple(value.shape),
                dtype=str(dtype).removeprefix("torch."),
                bytes_before=0 if tied else value.numel() * dtype.itemsize,
                bytes_after=after.get(name, 0),
                scheme=layer.scheme.label if layer else None,
                reason=None if layer else "tied to another parameter" if tied else "stored in float",
            )
        )
    return Report(
        goldstick_version=environment()["goldstick"],
        model=checkpoint.directory.name,
        recipe={},
        format=stored.format.name,
        layers=tuple(records),
        size=SizeSummary.of(records),
        environment=environment(),
    )


def bytes_by_parameter(checkpoint: QuantizedCheckpoint, sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of everything stored for each parameter of the model, from the bytes of every stored tensor by name."""
    stored = checkpoint.stored
    weights = {part_name(layer.name, suffix): layer.name for layer in stored.layers for suffix in stored.parts(layer)}
    found: dict[str, int] = {}
    for name, size in sizes.items():
        parameter = checkpoint.names.piece(weights.get(name, name)).parameter
        found[parameter] = found.get(parameter, 0) + size
    return found
