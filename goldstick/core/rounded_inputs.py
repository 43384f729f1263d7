"""Inputs rounded to 8 or 4 bits or to float elements, and back: what layers with quantized activations multiply."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.core.float_inputs import fake_quantize_float
from goldstick.core.scheme import FLOAT_INPUTS

#: Inputs with a scale for each token, by the name that kernels know them by → their bits.
TOKEN_BITS = {"int8-token": 8, "int4-token": 4}


def fake_quantize_per_token(x: Tensor, bits: int = 8) -> Tensor:
    """Round every token (a vector along the last dimension) to 2^bits levels of its own and back.

    scale = absmax / ((2^bits − 1) / 2), where that is 0 the dtype's epsilon; q = clamp(x / scale, −2^(bits−1),
    2^(bits−1) − 1) rounded to even; the result is q · scale. All steps in x's dtype, which makes it bit-equal to
    compressed-tensors' dynamic per-token activations of [batch, token, feature]. (It gives a whole matrix one scale; we
    do not.)
    """
    if x.numel() == 0:
        return x
    codes, scale = _token_codes(x, bits)
    return codes * scale


def quantize_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """The codes int8 [..., in] and scales [..., 1] of ``fake_quantize_per_token`` in 8 bits.

    The scale of a token that holds an infinity or what is no number is not a number.
    """
    if x.numel() == 0:
        return x.to(torch.int8), x.new_ones(*x.shape[:-1], 1)
    codes, scale = _token_codes(x, 8)
    scale = torch.where(scale.isfinite(), scale, torch.nan)
    return torch.where(scale.isfinite(), codes, 0).to(torch.int8), scale


def _token_codes(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Whole numbers [..., in] and scales [..., 1], both in x's dtype."""
    # Made on the device: a copy from the host waits, and no CUDA graph captures it. A plain number would be turned into
    # its reciprocal there, and multiplied.
    end = 2.0 ** (bits - 1)
    steps = x.new_full((), end - 0.5)
    scale = x.abs().amax(dim=-1, keepdim=True) / steps
    scale = torch.where(scale == 0, torch.finfo(x.dtype).eps, scale)
    return (x / scale).clamp_(-end, end - 1).round_(), scale


def fake_quantize_per_tensor(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """Round every value to one of 256 levels that are the same for all inputs, and back.

    q = clamp(x / scale + zero, −128, 127) rounded to even; the result is (q − zero) · scale. All steps in x's dtype,
    which makes it bit-equal to compressed-tensors' static per-tensor activations.

    Args:
        x: float [..., in].
        scale: [1], in x's dtype.
        zero: int8 [1], or ``None`` for a symmetric range.
    """
    codes = x / scale
    if zero is None:
        return codes.clamp_(-128, 127).round_() * scale
    shift = zero.to(x.dtype)
    return (codes.add_(shift).clamp_(-128, 127).round_() - shift) * scale


def quantized_input(x: Tensor, activation: str | None, input_scale: Tensor | None, input_zero: Tensor | None) -> Tensor:
    """The input as the layer multiplies it: as it is, or rounded and back."""
    if activation in FLOAT_INPUTS:
        return fake_quantize_float(x, FLOAT_INPUTS[activation], input_scale)
    if input_scale is not None:
        return fake_quantize_per_tensor(x, input_scale, input_zero)
    return fake_quantize_per_token(x, TOKEN_BITS[activation]) if activation else x
