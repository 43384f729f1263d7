"""Fused scales: layers that runtimes run as one, and whose scales of scales differ."""

from __future__ import annotations

from collections.abc import Iterator

from goldstick.formats.input_scale import INPUT_GLOBAL_SCALE, part_name
from goldstick.jobs.doctor.examined import Examined
from goldstick.jobs.doctor.finding import Finding
from goldstick.structure.run_together import RUN_TOGETHER

_SUFFIXES = ("_global_scale", INPUT_GLOBAL_SCALE)


def fused_scale_findings(examined: Examined) -> Iterator[Finding]:
    """Layers of one module that runtimes fuse, with different scales of their NVFP4 scales."""
    scaled = {layer.name for layer in examined.layers if layer.scheme.weight.tensor_scaled}
    where = []
    for name in sorted(scaled):
        module, _, leaf = name.removesuffix(".weight").rpartition(".")
        members = next((fused for fused in RUN_TOGETHER if fused[0] == leaf), ())
        together = [part for member in members if (part := f"{module}.{member}.weight") in scaled]
        for suffix in _SUFFIXES:
            names = [part_name(part, suffix) for part in together]
            values = {float(examined.tensors[one].read().max()) for one in names if one in examined.tensors}
            if len(values) > 1:
                listed = ", ".join(f"{value:.6g}" for value in sorted(values))
                where.append(f"{module}.{{{','.join(members)}}}: {suffix.lstrip('._')} {listed}")
    if where:
        yield Finding(
            severity="fault",
            check="fused-scales",
            what="layers that runtimes fuse have different scales of their scales; all but one are read wrong there",
            where=tuple(where),
            remedy="quantize the layers again with goldstick, which lets the layers of a module share one",
        )
