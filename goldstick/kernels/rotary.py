"""Rotary embedding of one token a sequence as torch operators: into a cache, and with the attention that follows."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.library import Library

from goldstick.errors import KernelError
from goldstick.kernels import cpu
from goldstick.kernels.attention import MOST_SHARING, THREADED_FROM, attend
from goldstick.kernels.fused import in_cpp
from goldstick.kernels.prepared import runs_at_once

_library = Library("goldstick", "FRAGMENT")
_library.define(
    "rotate_into(Tensor x, Tensor cos, Tensor sin, Tensor(a!) keys, Tensor(b!) values, int heads) -> Tensor"
)
_library.define(
    "attend_token(Tensor x, Tensor cos, Tensor sin, Tensor(a!) keys, Tensor(b!) values, int filled, int heads, "
    "float scaling) -> Tensor"
)


def rotate_into(x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    """Rotary embedding of one token a sequence: x · cos + rotate_half(x) · sin, each operation rounded to the dtype.

    Args:
        x: Queries, keys and values side by side, [batch, 1, (heads + 2 · kv_heads) · channels].
        cos: [batch or 1, 1, channels], in the dtype of x.
        sin: The same.
        keys: Where rotated keys are written, [batch, kv_heads, 1, channels]; channels lie side by side.
        values: Where values are written, of the same shape and strides.
        heads: Query heads.

    Returns:
        Rotated queries [batch, heads, channels].

    Raises:
        KernelError: Shapes, strides or dtypes do not fit.
    """
    if runs_at_once(x):
        return _rotate_into(x, cos, sin, keys, values, heads)
    return cast(Tensor, torch.ops.goldstick.rotate_into(x, cos, sin, keys, values, heads))


def attend_token(
    x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, filled: int, heads: int, scaling: float
) -> Tensor:
    """Rotate a token into buffers that hold others, and attend to all of them.

    :func:`rotate_into` at the place ``filled`` of the buffers, then :func:`~goldstick.kernels.attention.attend` to the
    first ``filled + 1`` tokens, with the same bits, in one call.

    Args:
        x: Queries, keys and values side by side, [batch, 1, (heads + 2 · kv_heads) · channels].
        cos: [batch or 1, 1, channels], in the dtype of x.
        sin: The same.
        keys: Buffer [batch, kv_heads, capacity, channels], dense.
        values: Another.
        filled: Tokens that are there.
        heads: Query heads.
        scaling: What products are multiplied by before the softmax.

    Returns:
        [batch, heads, channels] in the dtype of x.

    Raises:
        KernelError: Shapes, strides or dtypes do not fit, or the buffers are full.
    """
    if runs_at_once(x):
        return _attend_token(x, cos, sin, keys, values, filled, heads, scaling)
    return cast(Tensor, torch.ops.goldstick.attend_token(x, cos, sin, keys, values, filled, heads, scaling))


def _check_rotation(x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, heads: int) -> None:
    batch, kv_heads, tokens, channels = keys.shape if keys.ndim == 4 else (0, 0, 0, 0)
    fits = (
        x.shape == (batch, 1, (heads + 2 * kv_heads) * channels)
        and tokens == 1
        and values.shape == keys.shape
        and values.stride() == keys.stride()
        and keys.stride(3) == 1
        and cos.shape == sin.shape == (cos.shape[0], 1, channels)
        and cos.shape[0] in (1, batch)
        and len({x.dtype, cos.dtype, sin.dtype, keys.dtype, values.dtype}) == 1
        and heads >= 1
        and kv_heads >= 1
        and heads % kv_heads == 0
        and heads // kv_heads <= MOST_SHARING
        and channels % 2 == 0
    )
    if not fits:
        raise KernelError(
            f"rotate_into does not take {list(x.shape)} with angles {list(cos.shape)} into keys {list(keys.shape)} and "
            f"values {list(values.shape)} for {heads} heads in {x.dtype}"
        )


def _rotate_into(x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    _check_rotation(x, cos, sin, keys, values, heads)
    batch, kv_heads, _, channels = keys.shape
    if not in_cpp(x):
        parts = x.view(batch, -1, channels)
        q, k, v = parts[:, :heads], parts[:, heads : heads + kv_heads], parts[:, heads + kv_heads :]
        keys.copy_(_rotated(k, cos, sin).unsqueeze(2))
        values.copy_(v.unsqueeze(2))
        return _rotated(q, cos, sin)
    x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
    q = x.new_empty(batch, heads, channels)
    cpu._C.rotate(
        x.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        q.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        batch,
        heads,
        kv_heads,
        channels,
        channels if cos.shape[0] > 1 else 0,
        keys.stride(0),
        keys.stride(1),
        cpu.PRECISIONS[x.dtype],
    )
    return q


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def _check_token(x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, filled: int, heads: int) -> None:
    """The same for whole buffers; each comparison is cheap, since they are made for every layer and token."""
    batch, kv_heads, capacity, channels = keys.shape if keys.ndim == 4 else (0, 0, 0, 0)
    dtype, angles = x.dtype, cos.shape
    fits = (
        x.shape == (batch, 1, (heads + 2 * kv_heads) * channels)
        and values.shape == keys.shape
        and keys.is_contiguous()
        and values.is_contiguous()
        and (angles == (1, 1, channels) or angles == (batch, 1, channels))
        and sin.shape == angles
        and cos.dtype is dtype
        and sin.dtype is dtype
        and keys.dtype is dtype
        and values.dtype is dtype
        and 0 <= filled < capacity
        and kv_heads >= 1
        and heads >= 1
        and heads % kv_heads == 0
        and heads // kv_heads <= MOST_SHARING
        and channels % 2 == 0
    )
    if not fits:
        raise KernelError(
            f"attend_token does not take {list(x.shape)} with angles {list(cos.shape)} into keys {list(keys.shape)} "
            f"and values {list(values.shape)} behind {filled} tokens for {heads} heads in {x.dtype}"
        )


def _attend_token(
    x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, filled: int, heads: int, scaling: float
) -> Tensor:
    _check_token(x, cos, sin, keys, values, filled, heads)
    batch, kv_heads, capacity, channels = keys.shape
    if not in_cpp(x):
        place, there = slice(filled, filled + 1), slice(0, filled + 1)
        q = _rotate_into(x, cos, sin, keys[:, :, place], values[:, :, place], heads)
        return attend(q, [keys[:, :, there]], [values[:, :, there]], scaling)
    x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
    q, out = x.new_empty((batch, heads, channels)), x.new_empty((batch, heads, channels))
    cpu._C.attend_token(
        x.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        q.data_ptr(),
        out.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        batch,
        heads,
        kv_heads,
        channels,
        channels if cos.shape[0] > 1 else 0,
        capacity,
        filled,
        scaling,
        cpu.PRECISIONS[x.dtype],
        torch.get_num_threads() if filled * batch * heads * channels >= THREADED_FROM else 1,
    )
    return out


def _fake_rotate_into(x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    _check_rotation(x, cos, sin, keys, values, heads)
    return x.new_empty(keys.shape[0], heads, keys.shape[3])


def _fake_attend_token(
    x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, filled: int, heads: int, scaling: float
) -> Tensor:
    _check_token(x, cos, sin, keys, values, filled, heads)
    return x.new_empty(keys.shape[0], heads, keys.shape[3])


_library.impl("rotate_into", _rotate_into, "CompositeExplicitAutograd")
_library.impl("attend_token", _attend_token, "CompositeExplicitAutograd")
torch.library.register_fake("goldstick::rotate_into", _fake_rotate_into, lib=_library)
torch.library.register_fake("goldstick::attend_token", _fake_attend_token, lib=_library)
