"""The kernels as torch operators, so that ``torch.compile`` and ``torch.export`` see one opaque call.

``goldstick::quantized_linear`` and ``goldstick::dequantize`` choose a backend when they run (``kernels.select``), not
when they are traced. A linear layer has gradients for its input, grad_x = grad_y · w, and for its bias, and none for
codes, scales and zeros; where the input is rounded, they go straight through (1308.3432). Derivatives in forward mode
are refused. Defined through ``Library`` because the ``custom_op`` decorator costs 12 µs a call more.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.library import Library

from goldstick import kernels
from goldstick.core.element import INTEGER
from goldstick.kernels import convolution as _convolution  # noqa: F401  (registers goldstick::quantized_convolution)
from goldstick.kernels import fits_op as _fits_op  # noqa: F401  (registers goldstick::fit_blocks)
from goldstick.kernels import gptq_op as _gptq_op  # noqa: F401  (registers goldstick::gptq_block)
from goldstick.kernels import hadamard_op as _hadamard_op  # noqa: F401  (registers goldstick::hadamard)
from goldstick.kernels import norm_op as _norm_op  # noqa: F401  (registers goldstick::rms_norm_quantize)
from goldstick.kernels import products_op as _products_op  # noqa: F401  (registers goldstick::add_products)
from goldstick.kernels import ranges_op as _ranges_op  # noqa: F401  (registers goldstick::search_ranges)
from goldstick.kernels.base import (
    Activation,
    Backend,
    WeightSpec,
    check_input,
    check_weight,
    refuse_gradients,
    scaling_of,
)

_library = Library("goldstick", "FRAGMENT")
_library.define(
    "quantized_linear(Tensor x, Tensor packed, Tensor scale, Tensor? zero, Tensor? bias, "
    "int bits, int group_size, int in_features, str activation, "
    "Tensor? input_scale=None, Tensor? input_zero=None, str element='int', Tensor? global_scale=None) -> Tensor"
)
_library.define(
    "dequantize(Tensor packed, Tensor scale, Tensor? zero, int bits, int group_size, int in_features, "
    "str element='int', Tensor? global_scale=None) -> Tensor"
)


def quantized_linear(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bias: Tensor | None,
    *,
    bits: int,
    group_size: int,
    in_features: int,
    activation: Activation = None,
    input_scale: Tensor | None = None,
    input_zero: Tensor | None = None,
    element: str = INTEGER,
    global_scale: Tensor | None = None,
) -> Tensor:
    """y = f(x) · wᵀ + bias, [..., out] for x [..., in]; w and f as ``kernels/base.py`` defines them."""
    settings = bits, group_size, in_features, activation or ""
    found = torch.ops.goldstick.quantized_linear(
        x, packed, scale, zero, bias, *settings, input_scale, input_zero, element, global_scale
    )
    return cast(Tensor, found)


def dequantize(
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    *,
    bits: int,
    group_size: int,
    in_features: int,
    element: str = INTEGER,
    global_scale: Tensor | None = None,
) -> Tensor:
    """The weight w [out, in] in the dtype of ``scale``."""
    settings = bits, group_size, in_features, element
    return cast(Tensor, torch.ops.goldstick.dequantize(packed, scale, zero, *settings, global_scale))


def _run_linear(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bias: Tensor | None,
    bits: int,
    group_size: int,
    in_features: int,
    activation: str,
    input_scale: Tensor | None = None,
    input_zero: Tensor | None = None,
    element: str = INTEGER,
    global_scale: Tensor | None = None,
) -> Tensor:
    scaled = scaling_of(global_scale)
    layer = bits, group_size, in_features, packed.shape[0], zero is not None, scale.dtype, activation, element, *scaled
    spec = spec_of(*layer)
    backend = _backend(spec, x.device, os.environ.get("GOLDSTICK_BACKEND"))
    return backend.linear(x, packed, scale, zero, bias, spec, input_scale, input_zero, global_scale)


def _run_dequantize(
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bits: int,
    group_size: int,
    in_features: int,
    element: str = INTEGER,
    global_scale: Tensor | None = None,
) -> Tensor:
    scaled = scaling_of(global_scale)
    layer = bits, group_size, in_features, packed.shape[0], zero is not None, scale.dtype, "", element, *scaled
    spec = spec_of(*layer)
    backend = _backend(spec, packed.device, os.environ.get("GOLDSTICK_BACKEND"))
    return backend.dequantize(packed, scale, zero, spec, global_scale)


def _fake_linear(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bias: Tensor | None,
    bits: int,
    group_size: int,
    in_features: int,
    activation: str,
    input_scale: Tensor | None = None,
    input_zero: Tensor | None = None,
    element: str = INTEGER,
    global_scale: Tensor | None = None,
) -> Tensor:
    scaled = scaling_of(global_scale)
    layer = bits, group_size, in_features, packed.shape[0], zero is not None, scale.dtype, activation, element, *scaled
    spec = _spec(*layer)
    check_input(x, bias, spec, input_scale, input_zero)
    check_weight(packed, scale, zero, spec, global_scale)
    return x.new_empty(*x.shape[:-1], spec.out_features)


def _fake_dequantize(
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bits: int,
    group_size: int,
    in_features: int,
    element: str = INTEGER,
    global_scale: Tensor | None = None,
) -> Tensor:
    scaled = scaling_of(global_scale)
    layer = bits, group_size, in_features, packed.shape[0], zero is not None, scale.dtype, "", element, *scaled
    spec = _spec(*layer)
    check_weight(packed, scale, zero, spec, global_scale)
    return scale.new_empty(spec.out_features, in_features)


def _spec(
    bits: int,
    group_size: int,
    in_features: int,
    out_features: int,
    has_zero: bool,
    dtype: torch.dtype,
    activation: str,
    element: str = INTEGER,
    tensor_scaled: bool = False,
    superblocks: int = 0,
) -> WeightSpec:
    return WeightSpec(
        bits=bits,
        group_size=group_size,
        in_features=in_features,
        out_features=out_features,
        has_zero=has_zero,
        dtype=dtype,
        activation=activation or None,
        element=element,
        tensor_scaled=tensor_scaled,
        superblocks=superblocks,
    )


spec_of = lru_cache(maxsize=4096)(_spec)
"""The same for sizes that are numbers: while tracing they are symbols, and cannot be looked up."""


@lru_cache(maxsize=4096)
def _backend(spec: WeightSpec, device: torch.device, wanted: str | None) -> Backend:
    """The backend of a layer, remembered; ``wanted``, what GOLDSTICK_BACKEND holds, only keys the cache."""
    return kernels.select(spec, device)


def _keep_weight(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, packed, scale, zero, _, bits, group_size, in_features, *_, element, global_scale = inputs
    if any(ctx.needs_input_grad[place] for place in (2, 3)):
        refuse_gradients("quantized_linear")
    ctx.save_for_backward(packed, scale, zero, global_scale)
    ctx.settings = bits, group_size, in_features, element


def _keep_none(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    refuse_gradients("dequantize")


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    packed, scale, zero, global_scale = ctx.saved_tensors
    grad_x = grad_bias = None
    if ctx.needs_input_grad[0]:
        grad_x = grad @ torch.ops.goldstick.dequantize(packed, scale, zero, *ctx.settings, global_scale)
    if ctx.needs_input_grad[4]:
        grad_bias = grad.reshape(-1, grad.shape[-1]).sum(dim=0)
    return grad_x, None, None, None, grad_bias, *[None] * 8


_library.impl("quantized_linear", _run_linear, "CompositeExplicitAutograd")
_library.impl("dequantize", _run_dequantize, "CompositeExplicitAutograd")
torch.library.register_fake("goldstick::quantized_linear", _fake_linear, lib=_library)
torch.library.register_fake("goldstick::dequantize", _fake_dequantize, lib=_library)
torch.library.register_autograd("goldstick::quantized_linear", _backward, setup_context=_keep_weight, lib=_library)
torch.library.register_autograd("goldstick::dequantize", _backward, setup_context=_keep_none, lib=_library)
