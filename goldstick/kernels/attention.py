"""Attention of one token a sequence to a cache of floats or codes, as a torch operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.library import Library

from goldstick.errors import KernelError
from goldstick.kernels import cpu
from goldstick.kernels.fused import in_cpp
from goldstick.kernels.kv_numbers import CODINGS, NIBBLES, kv_numbers
from goldstick.kernels.prepared import runs_at_once

_library = Library("goldstick", "FRAGMENT")
_library.define(
    "attend(Tensor q, Tensor[] keys, Tensor[] values, float scaling, Tensor[] key_scales, Tensor[] value_scales,"
    " int turned) -> Tensor"
)

THREADED_FROM = 1 << 16
"""Products below this many take one thread: starting a team costs more than it saves."""

MOST_SHARING = 64
"""Query heads that may share a head of the cache."""

_MOST_RUNS = 3


def attend(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    scaling: float,
    key_scales: Sequence[Tensor] = (),
    value_scales: Sequence[Tensor] = (),
    turned: int = 0,
) -> Tensor:
    """Σ over t softmax(scaling · q·k[t])[t] · v[t], over runs of tokens one after the other, in float32.

    Args:
        q: [batch, heads, channels], a float of 16 or 32 bits.
        keys: Up to three runs [batch, kv_heads, tokens, channels], in the dtype of q or, one of them, codes: int8, FP8
            (E4M3) or, as uint8 [batch, kv_heads, tokens, channels / 2], int4
            (:func:`~goldstick.kernels.kv_nibbles.nibbles_of`).
        values: The same for values; a run has the same dtype in both.
        scaling: What products are multiplied by before the softmax.
        key_scales: Of keys that are codes, float32 [kv_heads, channels] or by token [batch, kv_heads, tokens]; of int4
            a step and a minimum for each token, [batch, kv_heads, tokens, 2]. One or none.
        value_scales: The same for values.
        turned: How many channels of what is coded a Hadamard transform has mixed; 0 for none.

    Returns:
        [batch, heads, channels] in the dtype of q.

    Raises:
        KernelError: Shapes, strides or dtypes do not fit.
    """
    if runs_at_once(q):
        return _attend(q, keys, values, scaling, key_scales, value_scales, turned)
    lists = list(keys), list(values), scaling, list(key_scales), list(value_scales)
    return cast(Tensor, torch.ops.goldstick.attend(q, *lists, turned))


def _check_attention(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    key_scales: Sequence[Tensor],
    value_scales: Sequence[Tensor],
    turned: int,
) -> None:
    if q.ndim != 3 or not 1 <= len(keys) == len(values) <= _MOST_RUNS:
        raise KernelError(f"attend takes queries [batch, heads, channels] and 1 to 3 runs, not {list(q.shape)}")
    batch, heads, channels = q.shape
    kv_heads = keys[0].shape[1] if keys[0].ndim == 4 else 0
    if not kv_heads or heads % kv_heads or heads // kv_heads > MOST_SHARING or channels % 2:
        raise KernelError(f"attend does not take {heads} heads of {channels} channels over {kv_heads} of the cache")
    if turned and (turned & (turned - 1) or turned < 0 or channels % turned):
        raise KernelError(f"{channels} channels of a head cannot have been turned in blocks of {turned}")
    coded = [run for run in keys if run.dtype in CODINGS]
    for runs, scales in ((keys, key_scales), (values, value_scales)):
        for run, other in zip(runs, keys, strict=True):
            of_token = channels // 2 if run.dtype == NIBBLES else channels
            shape = (batch, kv_heads, other.shape[2], of_token)
            if run.shape != shape or not (run.dtype == q.dtype or run.dtype in CODINGS):
                raise KernelError(f"attend does not take a run of {list(run.shape)} in {run.dtype} beside {q.dtype}")
            if run.dtype != other.dtype or (run.numel() and run.stride()[2:] != (of_token, 1)):
                raise KernelError("tokens of a run lie one after the other, and have one dtype in keys and values")
        shapes = [shape for run in coded for shape in _shapes_of_scales(run, channels)]
        right = all(tuple(scale.shape) in shapes and scale.dtype == torch.float32 for scale in scales)
        if len(coded) > 1 or len(scales) != len(coded) or not right:
            raise KernelError(
                "one run may be codes; it has float32 scales by channel or by token, of int4 steps and minimums"
            )
    if not sum(run.shape[2] for run in keys):
        raise KernelError("there is no token to attend to")


def _shapes_of_scales(run: Tensor, channels: int) -> list[tuple[int, ...]]:
    """What the scales of a run of codes may be like."""
    by_token = tuple(run.shape[:3])
    return [(*by_token, 2)] if run.dtype == NIBBLES else [by_token, (run.shape[1], channels)]


def _attend(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    scaling: float,
    key_scales: Sequence[Tensor],
    value_scales: Sequence[Tensor],
    turned: int,
) -> Tensor:
    _check_attention(q, keys, values, key_scales, value_scales, turned)
    if not in_cpp(q):
        return _attend_in_torch(q, keys, values, scaling, key_scales, value_scales, turned)
    q = q.contiguous()
    batch, heads, channels = q.shape
    by_channel = [
        scales[0].contiguous() if scales and scales[0].ndim == 2 else None for scales in (key_scales, value_scales)
    ]
    by_token = [scales[0] if scales and scales[0].ndim > 2 else None for scales in (key_scales, value_scales)]
    by_token = [scale if scale is None or _in_a_row(scale) else scale.contiguous() for scale in by_token]
    runs, tokens = [], 0
    for key, value in zip(keys, values, strict=True):
        coding = CODINGS.get(key.dtype, 0)
        places = [_place(run, scale if coding else None) for run, scale in zip((key, value), by_token, strict=True)]
        runs.append((key.shape[2], coding, *places[0], *places[1]))
        tokens += key.shape[2]
    out = torch.empty_like(q)
    cpu._C.attend(
        q.data_ptr(),
        out.data_ptr(),
        runs,
        0 if by_channel[0] is None else by_channel[0].data_ptr(),
        0 if by_channel[1] is None else by_channel[1].data_ptr(),
        batch,
        heads,
        keys[0].shape[1],
        channels,
        heads * channels,
        turned,
        scaling,
        cpu.PRECISIONS[q.dtype],
        torch.get_num_threads() if tokens * batch * heads * channels >= THREADED_FROM else 1,
    )
    return out


def _in_a_row(scale: Tensor) -> bool:
    """Whether the scales of a head's tokens, with their minimums, lie one after the other."""
    return scale.stride()[2:] == ((2, 1) if scale.ndim == 4 else (1,))


def _place(run: Tensor, scale: Tensor | None) -> tuple[int, int, tuple[int, int, int, int]]:
    """Address of a run and of its tokens' scales, and their strides."""
    strides = run.stride()
    if scale is None:
        return run.data_ptr(), 0, (strides[0], strides[1], 0, 0)
    return run.data_ptr(), scale.data_ptr(), (strides[0], strides[1], scale.stride(0), scale.stride(1))


def _attend_in_torch(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    scaling: float,
    key_scales: Sequence[Tensor],
    value_scales: Sequence[Tensor],
    turned: int,
) -> Tensor:
    """The same in plain operations: codes become numbers first."""
    batch, heads, channels = q.shape

    def numbers(run: Tensor, scales: Sequence[Tensor]) -> Tensor:
        if run.dtype not in CODINGS:
            return run.float()
        by_token = scales[0] if run.dtype == NIBBLES else scales[0].unsqueeze(-1)
        scale = scales[0][:, None] if scales[0].ndim == 2 else by_token
        return kv_numbers(run, scale, channels, torch.float32, turned)

    # [batch, kv_heads, tokens, channels]
    k = torch.cat([numbers(run, key_scales) for run in keys], dim=2)
    v = torch.cat([numbers(run, value_scales) for run in values], dim=2)
    grouped = q.float().view(batch, k.shape[1], -1, channels)
    weights = (scaling * grouped @ k.transpose(-1, -2)).softmax(dim=-1)
    return (weights @ v).view(batch, heads, channels).to(q.dtype)


def _fake_attend(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    scaling: float,
    key_scales: Sequence[Tensor],
    value_scales: Sequence[Tensor],
    turned: int,
) -> Tensor:
    _check_attention(q, keys, values, key_scales, value_scales, turned)
    return torch.empty_like(q, memory_format=torch.contiguous_format)


_library.impl("attend", _attend, "CompositeExplicitAutograd")
torch.library.register_fake("goldstick::attend", _fake_attend, lib=_library)
