"""Running quantized layers: backends in order of preference, and the one place that chooses between them."""

from __future__ import annotations

import os

import torch

from goldstick.errors import KernelError
from goldstick.kernels.base import Activation, Backend, WeightSpec
from goldstick.kernels.cpu import CpuBackend, chosen_isa
from goldstick.kernels.cpu.float_codes import FloatCodesCpuBackend
from goldstick.kernels.cpu.integer import IntegerCpuBackend
from goldstick.kernels.reference import ReferenceBackend
from goldstick.kernels.scaled_mm import ScaledMmBackend
from goldstick.kernels.triton import TritonBackend

__all__ = ["BACKENDS", "Activation", "Backend", "WeightSpec", "select"]

BACKENDS: tuple[Backend, ...] = (
    IntegerCpuBackend(),
    CpuBackend(),
    FloatCodesCpuBackend(),
    TritonBackend(),
    ReferenceBackend(),
    ScaledMmBackend(),
)
"""Tried in this order. The reference takes everything: what stands behind it runs where GOLDSTICK_BACKEND names it."""


def select(spec: WeightSpec, device: torch.device) -> Backend:
    """Choose the first backend that runs such a layer on such a device, or the one GOLDSTICK_BACKEND names.

    Raises:
        KernelError: The variable names no backend, or one that cannot run this layer; or nothing can.
        UsageError: GOLDSTICK_ISA asks for what this processor does not have.
    """
    wanted = os.environ.get("GOLDSTICK_BACKEND")
    chosen_isa()
    candidates = [backend for backend in BACKENDS if not wanted or backend.name == wanted]
    if not candidates:
        known = ", ".join(backend.name for backend in BACKENDS)
        raise KernelError(f"GOLDSTICK_BACKEND is {wanted!r}, which is no backend; known: {known}")
    reasons = {}
    for backend in candidates:
        reason = backend.supports(spec, device)
        if reason is None:
            return backend
        reasons[backend.name] = reason
    layer = f"a [{spec.out_features}, {spec.in_features}] layer of {spec.bits} bits in {spec.dtype} on {device}"
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    hint = "; unset GOLDSTICK_BACKEND to let another one take it" if wanted else ""
    raise KernelError(f"no backend runs {layer} ({why}){hint}")
