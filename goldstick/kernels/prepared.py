"""A quantized linear layer that was checked once, for calls whose fixed cost counts: one token through many layers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C import _is_tracing, _len_torch_dispatch_stack
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_functorch_wrapped_tensor,
    peek_interpreter_stack,
)
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from goldstick.core.element import INTEGER
from goldstick.core.scheme import FLOAT_INPUTS
from goldstick.errors import KernelError
from goldstick.kernels import cpu
from goldstick.kernels.base import WeightSpec, check_input, check_weight, scaling_of
from goldstick.kernels.cpu.integer import THREADED_FROM, IntegerCpuBackend, coding_of
from goldstick.kernels.input_bits import grouped_rounding

Operands = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Of a layer: packed codes, scale, zero, bias, input scale, input zero, scale of scales."""

_BACKEND = IntegerCpuBackend()
_CPU = torch.device("cpu")


def runs_at_once(x: Tensor) -> bool:
    """Whether an operator on ``x`` may run right here: nothing traces, compiles, differentiates or maps it.

    Raises:
        KernelError: It is differentiated in forward mode, for which operators have no rule: torch would take 0; or by
            torch.func, whose transforms take no operator that was given its rule by torch.library.
    """
    if forward_ad._current_level >= 0 and _has_tangent(x):
        raise KernelError(
            "Packed weights have no derivatives in forward mode (torch.func.jvp, jacfwd): take them in reverse mode, "
            "by torch.autograd.grad or torch.autograd.functional.jacobian."
        )
    # Not one of those that export and the compiler's later stages pass through.
    if type(x) is Tensor and x.is_cpu and not x.requires_grad and nothing_intercepts():
        return True
    if not is_dynamo_compiling() and _differentiated_by_func(x):
        raise KernelError(
            "Packed weights have no derivatives by torch.func (grad, vjp, jacrev, hessian): take them by "
            "torch.autograd.grad or torch.autograd.functional.jacobian."
        )
    return False


def _differentiated_by_func(x: Tensor) -> bool:
    """Whether one of torch.func's transforms of gradients is under way, and ``x`` belongs to it."""
    if not any(one.key() == TransformType.Grad for one in get_interpreter_stack() or ()):
        return False
    while not x.requires_grad and is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    return x.requires_grad


def _has_tangent(x: Tensor) -> bool:
    return forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]


def nothing_intercepts() -> bool:
    """Whether nothing traces, compiles or maps what runs here."""
    return (
        not is_dynamo_compiling()
        and not _len_torch_dispatch_stack()
        and not _is_tracing()
        and peek_interpreter_stack() is None
    )


class PreparedLinear:
    """What ``goldstick::quantized_linear`` does with one weight, without its dispatch and its checks in every call.

    Results are those of the operator, which is asked wherever this gives ``None``: other devices and backends, tensors
    that are being traced, inputs that do not fit (and its errors). The weight is read where it lies, so changes of its
    numbers are seen; tensors in other places are prepared anew, and none is kept alive.

    Or it is ``interleaved``: a copy of the weight, rows side by side as vectors take them, is read instead, with equal
    results. Changes of the weight's numbers are then seen by the tensors' versions, so not those made through
    ``.data``. Without AVX2, for tensors that have no version, and where the copy would be much larger than the weight,
    there is none.

    Args:
        bits: Width of a code.
        group_size: Columns that share a scale.
        in_features: Columns of the weight.
        activation: How the input is quantized, as the operator takes it.
        interleaved: Whether to read a copy.
        element: What a code stands for.
    """

    def __init__(
        self,
        bits: int,
        group_size: int,
        in_features: int,
        activation: str,
        interleaved: bool = False,
        element: str = INTEGER,
    ) -> None:
        self.settings = bits, group_size, in_features, activation
        self.interleaved, self.element = interleaved, element
        self._places: tuple[object, ...] = ()
        self._layer: Any = None
        self._packed: weakref.ref[Tensor] | None = None
        self._dtype = torch.float32
        self._rows = 0

    def __reduce__(self) -> tuple[type[PreparedLinear], tuple[int, int, int, str, bool, str]]:
        return PreparedLinear, (*self.settings, self.interleaved, self.element)  # a copy prepares itself

    def __call__(self, x: Tensor, weight: Operands) -> Tensor | None:
        """y = f(x) · wᵀ + bias, or ``None`` where the operator has to do it."""
        if not runs_at_once(x):
            return None
        layer = self.ready(weight)
        shape, columns = x.shape, self.settings[2]
        if layer is None or not shape or shape[-1] != columns or x.dtype is not self._dtype:
            return None
        x = x.contiguous()
        y = torch.empty((*shape[:-1], self._rows), dtype=self._dtype, device=_CPU)
        tokens = x.numel() // columns
        threads = torch.get_num_threads() if tokens * columns * self._rows >= THREADED_FROM else 1
        return y if layer.run(x.data_ptr(), y.data_ptr(), tokens, threads) else None

    @property
    def reads_copy(self) -> bool:
        """Whether there is a copy, which the last call read."""
        return self._layer is not None and bool(self._layer.interleaved)

    def ready(self, weight: Operands) -> Any:
        """The layer in C++, or ``None`` where it cannot run there; prepared anew for other tensors or places."""
        places: tuple[object, ...] = (
            weight[1].dtype,
            grouped_rounding(),
            *[None if one is None else (one.data_ptr(), one.requires_grad) for one in weight],
        )
        if self.interleaved:
            places = (*places, *versions((*weight[:3], weight[6])))
        # Some rows of a tensor may begin where it does: the place alone does not tell them from all.
        if places != self._places or self._packed is None or self._packed() is not weight[0]:
            self._layer = self._prepared(*weight)
            self._places = places
            self._packed = weakref.ref(weight[0], self._forget)
        return self._layer

    def _forget(self, _: object) -> None:
        """Let go of the weight with its last owner: a block that was released would stay in memory."""
        self._layer, self._places = None, ()

    def _prepared(
        self,
        packed: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        bias: Tensor | None,
        input_scale: Tensor | None,
        input_zero: Tensor | None,
        global_scale: Tensor | None,
    ) -> Any:
        """The layer in C++, or ``None`` where it cannot run there."""
        bits, group_size, columns, activation = self.settings
        if activation in FLOAT_INPUTS:
            return None
        operands = packed, scale, zero, bias, input_scale, input_zero, global_scale
        tensors = [tensor for tensor in operands if tensor is not None]
        if not all(tensor.is_cpu and tensor.is_contiguous() and not tensor.requires_grad for tensor in tensors):
            return None
        scaled, superblocks = scaling_of(global_scale)
        spec = WeightSpec(
            bits=bits,
            group_size=group_size,
            in_features=columns,
            out_features=packed.shape[0],
            has_zero=zero is not None,
            dtype=scale.dtype,
            activation=activation or None,
            element=self.element,
            tensor_scaled=scaled,
            superblocks=superblocks,
        )
        if _BACKEND.supports(spec, packed.device) or (zero is not None and zero.dtype != torch.float32):
            return None
        check_weight(packed, scale, zero, spec, global_scale)
        check_input(scale.new_empty(0, columns), bias, spec, input_scale, input_zero)
        self._dtype, self._rows = spec.dtype, spec.out_features
        stored = [None if tensor is None else cpu._as_stored(tensor) for tensor in (scale, zero, bias, input_scale)]
        copied = self.interleaved and None not in versions((packed, scale, zero, global_scale))
        coding = coding_of(self.element, global_scale)
        return cpu._C.prepare_linear(
            packed.detach(),
            *stored,
            input_zero,
            bits,
            columns,
            group_size,
            activation or grouped_rounding(),
            copied,
            *coding,
        )


def versions(tensors: Iterable[Tensor | None]) -> list[int | None]:
    """How often each tensor was changed in place: 0 where there is none, ``None`` where nothing counts it."""
    return [0 if one is None else None if one.is_inference() else one._version for one in tensors]
