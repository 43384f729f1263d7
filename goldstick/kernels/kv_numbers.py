"""What the codes of a cache stand for, as numbers in memory: for whoever attends to floats."""

from __future__ import annotations

import torch
from torch import Tensor

from goldstick.kernels import cpu
from goldstick.kernels.kv_nibbles import numbers_of
from goldstick.kernels.prepared import runs_at_once

NIBBLES = torch.uint8
"""What codes of int4 lie in, two in a byte."""

CODINGS = {torch.int8: 1, torch.float8_e4m3fn: 2, NIBBLES: 3}
"""What codes lie in, as C++ counts it; all else are floats."""

_THREADED_FROM = 1 << 16
"""Numbers below this many take one thread: starting a team costs more than it saves."""


def kv_numbers(codes: Tensor, scale: Tensor, channels: int, dtype: torch.dtype, turned: int = 0) -> Tensor:
    """q · s, or of int4 q · s + low turned back, in float32, then cast to ``dtype``.

    Args:
        codes: [batch, kv_heads, tokens, channels], int8 or FP8 (E4M3); of int4 uint8 of half as many channels.
        scale: float32 [kv_heads, 1, channels] or, by token, [batch, kv_heads, tokens, 1]; of int4 a step and a minimum
            for each token, [batch, kv_heads, tokens, 2].
        channels: Of a head.
        dtype: What numbers are to be.
        turned: How many channels of what int4 holds a Hadamard transform has mixed; 0 for none.

    Returns:
        [batch, kv_heads, tokens, channels].
    """
    by_token = scale.ndim == 4
    rows = bool(codes.numel()) and codes.stride()[2:] == (codes.shape[3], 1)
    fits = rows and scale.stride()[-1] == 1 and (not by_token or scale.stride(2) == scale.shape[3])
    if cpu._C is None or dtype not in cpu.PRECISIONS or not fits or channels % 2 or not runs_at_once(codes):
        if codes.dtype == NIBBLES:
            return numbers_of(codes, scale, channels, dtype, turned)
        return (codes.float() * scale).to(dtype)
    batch, kv_heads, tokens = codes.shape[:3]
    found = torch.empty((batch, kv_heads, tokens, channels), dtype=dtype)
    strides = (codes.stride(0), codes.stride(1), *((scale.stride(0), scale.stride(1)) if by_token else (0, 0)))
    cpu._C.cache_numbers(
        CODINGS[codes.dtype],
        codes.data_ptr(),
        scale.data_ptr() if by_token else 0,
        strides,
        0 if by_token else scale.data_ptr(),
        found.data_ptr(),
        batch,
        kv_heads,
        tokens,
        channels,
        turned,
        cpu.PRECISIONS[dtype],
        torch.get_num_threads() if found.numel() >= _THREADED_FROM else 1,
    )
    return found
