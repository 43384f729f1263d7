"""The CPU backend: C++ turns codes into weights, torch multiplies.

The compiled module is imported after torch, so that both use torch's copy of the OpenMP runtime.
"""

from __future__ import annotations

import threading
import warnings
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from goldstick.core.element import INTEGER
from goldstick.core.notices import SlowKernelsWarning
from goldstick.core.rounded_inputs import quantized_input
from goldstick.errors import UsageError
from goldstick.kernels.base import WeightSpec, check_input, check_weight

_C: ModuleType | Any
try:
    from goldstick.kernels.cpu import _C

    _missing: str | None = None
except ImportError as error:
    _C, _missing = (
        None,
        f"the compiled kernels cannot be imported ({error}); install goldstick with a C++ compiler",
    )
    warnings.warn(
        f"The compiled kernels of goldstick cannot be imported ({error}): everything gives the same and takes many "
        "times as long. Install goldstick with a C++17 compiler at hand; 'goldstick doctor' shows what is found.",
        SlowKernelsWarning,
        stacklevel=1,
    )

PRECISIONS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""What C++ calls the dtypes that layers compute in."""

_STORED = {torch.bfloat16: torch.int16, torch.float16: torch.uint16}
"""As what elements cross into C++ that are no type there."""

_THREADED_FROM = 1 << 16
"""Weights below this many elements take one thread: starting a team costs more than it saves."""

_SCRATCH_LIMIT = 1 << 28
"""Bytes of scratch kept between calls, per thread; larger weights allocate and free theirs."""

_scratch = threading.local()


def missing_extension() -> str | None:
    """Why the compiled kernels are not there, or ``None``."""
    return _missing


def chosen_isa() -> str | None:
    """The instructions of the kernels: the processor's best, or what GOLDSTICK_ISA names; ``None`` without kernels.

    Raises:
        UsageError: The variable names none, or one that this processor does not have.
    """
    if _missing:
        return None
    try:
        return str(_C.isa())
    except ValueError as error:
        raise UsageError(f"{error}. Set another, or unset it.") from error


class CpuBackend:
    """Dequantizes with vector instructions into a scratch buffer; results are bit-equal to the reference."""

    name = "cpu"

    def supports(self, spec: WeightSpec, device: torch.device) -> str | None:
        """Float layers of 16 and 32 bits on the CPU, where the extension was built."""
        if _missing:
            return _missing
        if device.type != "cpu":
            return f"it runs on the CPU, not on {device.type}"
        if not self.reads(spec.element):
            return f"it reads {'integers' if self.reads(INTEGER) else 'float elements'}, not {spec.element}"
        if spec.dtype not in PRECISIONS:
            return f"it computes in {', '.join(PRECISIONS.values())}, not in {spec.dtype}"
        return None

    def reads(self, element: str) -> bool:
        """Integers."""
        return element == INTEGER

    def linear(
        self,
        x: Tensor,
        packed: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        bias: Tensor | None,
        spec: WeightSpec,
        input_scale: Tensor | None = None,
        input_zero: Tensor | None = None,
        global_scale: Tensor | None = None,
    ) -> Tensor:
        """Fake-quantize the input if the spec says so, then multiply by the dequantized weight."""
        check_input(x, bias, spec, input_scale, input_zero)
        weight = scratch_matrix(spec)
        self._dequantize_into(weight, packed, scale, zero, spec, global_scale)
        return F.linear(quantized_input(x, spec.activation, input_scale, input_zero), weight, bias)

    def dequantize(
        self,
        packed: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        spec: WeightSpec,
        global_scale: Tensor | None = None,
    ) -> Tensor:
        """(u − zero) · scale, both operations rounded to the dtype of the scale."""
        weight = torch.empty(spec.out_features, spec.in_features, dtype=spec.dtype)
        self._dequantize_into(weight, packed, scale, zero, spec, global_scale)
        return weight

    def _dequantize_into(
        self,
        weight: Tensor,
        packed: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        spec: WeightSpec,
        global_scale: Tensor | None,
    ) -> None:
        check_weight(packed, scale, zero, spec, global_scale)
        _C.dequantize_rows(
            packed.detach().contiguous(),
            _as_stored(scale),
            None if zero is None else _as_stored(zero.to(scale.dtype)),
            _as_stored(weight),
            spec.bits,
            spec.group_size,
            threads_for(spec),
            None if global_scale is None else global_scale.detach().contiguous(),
        )


def _as_stored(tensor: Tensor) -> Tensor:
    """A dense tensor as it crosses into C++."""
    dense = tensor.detach().contiguous()
    return dense.view(_STORED.get(dense.dtype, dense.dtype))


def threads_for(spec: WeightSpec) -> int:
    """Threads that a pass over one weight takes."""
    return torch.get_num_threads() if spec.out_features * spec.in_features >= _THREADED_FROM else 1


def scratch_matrix(spec: WeightSpec) -> Tensor:
    """Uninitialized memory for one weight matrix, valid until this thread's next call."""
    count = spec.out_features * spec.in_features
    size = count * spec.dtype.itemsize
    if size > _SCRATCH_LIMIT:
        return torch.empty(spec.out_features, spec.in_features, dtype=spec.dtype)
    buffer: Tensor | None = getattr(_scratch, "buffer", None)
    if buffer is None or buffer.numel() < size:
        with torch.inference_mode(False):  # the buffer outlives a caller's inference mode
            buffer = _scratch.buffer = torch.empty(size, dtype=torch.uint8)
    return buffer[:size].view(spec.dtype).view(spec.out_features, spec.in_features)
