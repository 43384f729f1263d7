"""The GPU backend: Triton kernels that multiply packed codes. Triton is imported when a layer first asks for it."""

from __future__ import annotations

import contextlib
import os
import warnings
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from goldstick.core.element import INTEGER
from goldstick.core.notices import SlowKernelsWarning
from goldstick.core.rounded_inputs import TOKEN_BITS, fake_quantize_per_token
from goldstick.core.scheme import FLOAT_INPUTS
from goldstick.errors import KernelError
from goldstick.kernels.base import WeightSpec, check_input, check_weight

_OLDEST_VERSION = (3, 6)
"""What the kernels were tried with; torch brings the Triton it was built for."""

_OLDEST_CAPABILITY = (8, 0)
"""Of NVIDIA's devices those from here on multiply bfloat16 and 8-bit integers in tensor cores."""

_RUN_ON = ((9, 0),)
"""Capabilities of the devices that ran the kernels and whole models with them; others take them by name."""


def why_not_on(device: torch.device) -> str | None:
    """``None`` if Triton's kernels run on such a device, otherwise the reason why not."""
    asked = os.environ.get("GOLDSTICK_BACKEND") == "triton"
    if device.type == "cuda":
        return _missing() or _why_not_on_cuda(device) or (None if asked else _why_by_name(device))
    if device.type != "cpu" or not asked:
        return f"it runs on CUDA devices, not on {device.type}"
    if reason := _missing():
        return reason
    if not _module("tuning").interpreted:
        return "on the CPU it runs only in Triton's interpreter: set TRITON_INTERPRET=1 before Triton is imported"
    return None


class TritonBackend:
    """Codes become numbers in registers and are multiplied there; nothing is kept beside the packed weight.

    Float inputs are multiplied in their dtype and summed in float32. Integer inputs with a scale per token have the
    codes of the reference and exact integer sums, where groups are whole rows or at least 32 bytes of codes; with other
    groups they are rounded and multiplied as floats. ``dequantize`` is bit-equal to the reference.
    """

    name = "triton"

    def supports(self, spec: WeightSpec, device: torch.device) -> str | None:
        """Codes of 4 and 8 bits on CUDA devices: those that ran it, others and Triton's interpreter by name."""
        if spec.element != INTEGER or spec.activation in FLOAT_INPUTS:
            return "it reads integers, with integer or float inputs"
        if spec.superblocks:
            return "it does not read superblocks"
        if spec.bits not in (4, 8):
            return f"it reads codes of 4 and 8 bits, not {spec.bits}"
        if spec.groups > 1 and spec.group_size * spec.bits % 32:
            return f"its groups fill whole 32-bit words, {spec.group_size} codes of {spec.bits} bits do not"
        if spec.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return f"it computes in float32, float16 and bfloat16, not {spec.dtype}"
        if spec.activation == "int8-tensor":
            return "it quantizes inputs by token, not with one scale for all"
        return why_not_on(device)

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
        """Multiply integers if the input is to be rounded and the groups allow it, otherwise floats."""
        check_input(x, bias, spec, input_scale, input_zero)
        check_weight(packed, scale, zero, spec)
        _check_devices(x, packed, scale, zero, bias)
        inputs = x.detach().reshape(x.numel() // spec.in_features, spec.in_features)
        zero = None if zero is None else zero.to(scale.dtype)
        with _current(x.device):
            if spec.activation is None:
                y: Tensor = _module("weight_only").linear(inputs, packed, scale, zero, bias, spec)
            elif _module("integers").supports(spec):
                y = _module("integers").linear(inputs, packed, scale, zero, bias, spec)
            else:
                rounded = fake_quantize_per_token(inputs, TOKEN_BITS[spec.activation])
                y = _module("weight_only").linear(rounded, packed, scale, zero, bias, spec)
        return y.reshape(*x.shape[:-1], spec.out_features)

    def dequantize(
        self,
        packed: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        spec: WeightSpec,
        global_scale: Tensor | None = None,
    ) -> Tensor:
        """(u − zero) · scale, both operations rounded to the dtype of the scale."""
        check_weight(packed, scale, zero, spec)
        _check_devices(packed, scale, zero)
        zero = None if zero is None else zero.to(scale.dtype)
        with _current(scale.device):
            weight: Tensor = _module("dequantize").dequantize(packed, scale, zero, spec)
        return weight


def rms_norm_quantize(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """What ``kernels/norm_op.py`` defines, in one kernel; the device must be one that ``why_not_on`` allows."""
    _check_devices(x, weight)
    tokens = x.detach().reshape(x.numel() // x.shape[-1], x.shape[-1])
    with _current(x.device):
        codes, scale, _ = _module("quantize").quantize_tokens(tokens, weight.detach(), epsilon)
    return codes.reshape(x.shape), scale.reshape(*x.shape[:-1], 1)


def compiles_for(device: torch.device) -> bool:
    """Whether Triton makes the kernels of algorithms for a device, which compute what plain torch does, bit for bit.

    They need no measurement to be chosen, so any device that is new enough has them.
    """
    return not (_missing() or _why_not_on_cuda(device) or _why_not_compiled(device))


def gptq_block(weight: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """What ``kernels/gptq_op.py`` defines; the device must be one that Triton compiles for."""
    _check_devices(weight, *arguments[:3])
    with _current(weight.device):
        codes, errors = _module("columns").solve_block(weight, *arguments, **options)
    return codes, errors


def search_ranges(grouped: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """What ``kernels/ranges_op.py`` defines; the device must be one that Triton compiles for."""
    _check_devices(grouped, *arguments[:3])
    with _current(grouped.device):
        best: Tensor = _module("ranges").search_ranges(grouped, *arguments, **options)
    return best


def _check_devices(*tensors: Tensor | None) -> None:
    """Raise a KernelError unless all lie on one device: Triton would follow an address into another one's memory."""
    devices = sorted({str(tensor.device) for tensor in tensors if tensor is not None})
    if len(devices) > 1:
        raise KernelError(f"tensors of one call lie on {' and '.join(devices)}: move them to one device")


@lru_cache
def _missing() -> str | None:
    try:
        _module("tuning")
    except ImportError as error:
        return f"Triton cannot be imported ({error}); install goldstick[gpu]"
    version: str = import_module("triton").__version__
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_VERSION:
        return f"it needs Triton {_OLDEST_VERSION[0]}.{_OLDEST_VERSION[1]}, not {version}"
    return None


@lru_cache
def _why_not_on_cuda(device: torch.device) -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device is here"
    if torch.version.hip is not None:
        return "it was written for NVIDIA's devices and never tried on others"
    capability = torch.cuda.get_device_capability(device)
    if capability < _OLDEST_CAPABILITY:
        needed, found = (".".join(map(str, pair)) for pair in (_OLDEST_CAPABILITY, capability))
        return f"it needs compute capability {needed}, not {found}"
    return None


@lru_cache
def _why_not_compiled(device: torch.device) -> str | None:
    """``None`` if Triton has what it compiles with: a C compiler and Python's headers, beside what it brings."""
    one = torch.ones(1, 1, dtype=torch.float64, device=device)
    try:
        group = torch.zeros(1, dtype=torch.int64, device=device)
        gptq_block(one, one, one.float(), None, group, 4)
    except Exception as error:  # of any kind: it may be the compiler's, the loader's, the driver's
        first_line = next(iter(str(error).splitlines()), "")
        reason = f"Triton compiles nothing here ({type(error).__name__}: {first_line})"
        warnings.warn(
            SlowKernelsWarning(f"{reason}. Calibration on this GPU takes several times as long."), stacklevel=2
        )
        return reason
    return None


@lru_cache
def _why_by_name(device: torch.device) -> str | None:
    if (capability := torch.cuda.get_device_capability(device)) in _RUN_ON:
        return None
    found = ".".join(map(str, capability))
    return f"it was not run on devices of compute capability {found} yet: ask for it with GOLDSTICK_BACKEND=triton"


@lru_cache
def _module(name: str) -> ModuleType:
    """A module of kernels, imported when it is first used."""
    return import_module(f"goldstick.kernels.triton.{name}")


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make the device that holds the tensors the current one: Triton launches there."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
