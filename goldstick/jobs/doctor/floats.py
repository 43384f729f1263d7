"""Float tensors: numbers that are none, and those that float16 has no room for."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.core.rows import CHUNK_ELEMENTS
from goldstick.jobs.doctor.finding import Finding

FLOAT16_MAX = float(torch.finfo(torch.float16).max)
_SCALES = (".input_scale", ".k_scale", ".v_scale")


def float_findings(name: str, info: TensorInfo) -> Iterator[Finding]:
    """NaN, infinity, and what lies outside of float16; scales of inputs and caches that are not positive."""
    tensor = info.read().reshape(-1)
    broken, largest = 0, 0.0
    for part in torch.split(tensor, CHUNK_ELEMENTS):
        values = part.float()
        finite = values.isfinite()
        broken += int((~finite).sum())
        largest = max(largest, float(torch.where(finite, values, 0).abs().max()))
    if broken:
        yield _fault("non-finite", "float tensors hold NaN or infinity", f"{name}: {broken} of {len(tensor)} values")
    elif name.endswith(_SCALES) and not bool((tensor.float() > 0).all()):
        yield _fault("zero-scales", "scales of inputs or of the cache are zero or negative", name)
    if largest > FLOAT16_MAX:
        yield Finding(
            severity="remark",
            check="float16",
            what="values that float16 has no room for: run in float16, the model gives NaN",
            where=(f"{name}: up to {largest:.3g}",),
            remedy="run it in bfloat16 or float32",
        )
    if info.dtype.is_floating_point and len(info.shape) > 1 and len(tensor) and not largest and not broken:
        yield Finding(
            severity="remark",
            check="zeros",
            what="float matrices of nothing but zeros, as tensors are that were never written",
            where=(name,),
            remedy="compare them with the float model",
        )


def _fault(check: str, what: str, where: str) -> Finding:
    remedy = "quantize or convert the float model again; if it holds them too, it is broken itself"
    return Finding(severity="fault", check=check, what=what, where=(where,), remedy=remedy)
