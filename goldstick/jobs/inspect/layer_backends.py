"""Which kernels would run the layers of a checkpoint on this machine."""

from __future__ import annotations

import math

import torch

from goldstick.core.scheme import Scheme
from goldstick.errors import KernelError
from goldstick.kernels import WeightSpec, select
from goldstick.report import LayerRecord, Report


def backend_words(report: Report) -> str:
    """A line such as ``kernels on cpu: cpu-integer for 24 layers``, or why GOLDSTICK_BACKEND leaves none."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        counts = backends_of(report, device)
    except KernelError as error:
        return f"kernels on {device.type}: {error}"
    found = ", ".join(f"{name} for {count} layer{'s' * (count != 1)}" for name, count in counts.items())
    return f"kernels on {device.type}: {found or 'none, no layer is quantized'}"


def backends_of(report: Report, device: torch.device) -> dict[str, int]:
    """How many quantized layers each backend takes on a device, by its name, in the order of the layers.

    Raises:
        KernelError: GOLDSTICK_BACKEND names no backend, or one that cannot run a layer.
    """
    counts: dict[str, int] = {}
    for layer in report.layers:
        if layer.scheme is not None:
            name = select(_spec(layer, Scheme.of_label(layer.scheme)), device).name
            counts[name] = counts.get(name, 0) + 1
    return counts


def _spec(layer: LayerRecord, scheme: Scheme) -> WeightSpec:
    """The layer as its kernels see it: of a fused weight one expert, of a convolution the matrix of its filters."""
    rows, columns = layer.shape[-2:] if len(layer.shape) < 4 else (layer.shape[0], math.prod(layer.shape[1:]))
    return WeightSpec(
        bits=scheme.weight.bits,
        group_size=min(scheme.weight.group_width(columns), columns),
        in_features=columns,
        out_features=rows,
        has_zero=not scheme.weight.symmetric,
        dtype=getattr(torch, layer.dtype),
        activation=scheme.activation.input_name if scheme.activation else None,
        element=scheme.weight.element,
        tensor_scaled=scheme.weight.tensor_scaled,
        superblocks=columns // scheme.weight.superblock if scheme.weight.superblock else 0,
    )
