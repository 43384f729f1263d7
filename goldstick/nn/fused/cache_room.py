"""Where the next token goes in a layer of a cache, for C++ that writes it: floats of transformers, or codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from goldstick.nn.kv_buffer import KVBuffer
from goldstick.nn.kv_cache import QuantizedStates

#: Coding, addresses of tokens and of their scales and of those of channels, room for both, floats before them and their
#: strides of batch and head. None is 0.
Side = tuple[int, int, int, int, int, int, int, int, int]
Place = tuple[Side, Side, int, int, int]


@dataclass(frozen=True, eq=False)
class FloatRoom:
    """Buffers of a layer of transformers' ``DynamicCache``.

    Args:
        layer: The layer.
        keys: The buffer in which its keys lie.
        values: That of its values.
        tokens: Keys and values that it shows.
    """

    layer: Any
    keys: KVBuffer
    values: KVBuffer
    tokens: tuple[Tensor, Tensor]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, heads, tokens, channels."""
        batch, heads, _, channels = self.keys.buffer.shape
        return batch, heads, self.keys.filled, channels

    def place(self) -> Place:
        """As C++ takes it."""
        keys, values = (
            (0, one.buffer.data_ptr(), 0, 0, one.buffer.shape[2], 0, 0, 0, 0) for one in (self.keys, self.values)
        )
        return keys, values, self.keys.filled, 0, 0

    def fits(self) -> bool:
        """Whether the layer still holds what it did, of which its buffers have copies."""
        return self.layer.keys is self.tokens[0] and self.layer.values is self.tokens[1]

    def extend(self) -> None:
        """Give the token that was written to the cache."""
        self.layer.keys, self.layer.values = self.keys.extended(), self.values.extended()


@dataclass(frozen=True, eq=False)
class CodeRoom:
    """Buffers of a layer of a quantized cache, whose next token is rounded at once.

    Args:
        layer: The layer.
        tokens: Keys and values that it shows.
    """

    layer: Any
    tokens: tuple[Tensor, Tensor]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, heads, tokens, channels."""
        states: QuantizedStates = self.layer.key_states
        batch, heads, tokens = states.codes.shape[:3]
        return batch, heads, states.first.shape[2] + tokens, states.channels

    def place(self) -> Place:
        """As C++ takes it."""
        keys: QuantizedStates = self.layer.key_states
        return _side(keys), _side(self.layer.value_states), keys.codes.shape[2], keys.first.shape[2], keys.turned

    def fits(self) -> bool:
        """Whether the layer still holds what it did."""
        keys, values = self.layer.key_states, self.layer.value_states
        return keys is not None and keys.codes is self.tokens[0] and values.codes is self.tokens[1]

    def extend(self) -> None:
        """Give the token that was written to the cache."""
        self.layer.key_states.extend()
        self.layer.value_states.extend()
        self.layer.cumulative_length += 1


Room = FloatRoom | CodeRoom


def room_in(layer: Any, dtype: torch.dtype) -> Room | None:
    """Room for a token of each sequence in a layer of a cache, or ``None`` where C++ cannot write it.

    Args:
        layer: A layer of a cache, in use, that keeps all its tokens.
        dtype: What the token's key and value are.
    """
    if type(layer).__name__ == "DynamicLayer":  # by name, since this knows no transformers
        buffers = buffers_of(layer) if layer.keys.dtype is dtype else None
        if buffers is None or buffers[1].buffer.dtype is not dtype:
            return None
        return FloatRoom(layer, *buffers, (layer.keys, layer.values))
    keys, values = getattr(layer, "key_states", None), getattr(layer, "value_states", None)
    if not (isinstance(keys, QuantizedStates) and isinstance(values, QuantizedStates)) or layer.is_sliding:
        return None
    if layer.dtype is not dtype or not keys.codes.is_cpu:
        return None
    if keys.channels % 2 or any(
        getattr(keys, part).shape != getattr(values, part).shape for part in ("first", "codes", "recent")
    ):
        return None
    if not (keys.makes_room() and values.makes_room()):
        return None
    return CodeRoom(layer, (keys.codes, values.codes))


def buffers_of(layer: Any) -> tuple[KVBuffer, KVBuffer] | None:
    """Buffers of a layer of floats, made where it has none or was changed by others."""
    if layer.keys.ndim != 4 or layer.values.shape != layer.keys.shape or not layer.keys.is_cpu:
        return None
    kv_buffers: tuple[KVBuffer, KVBuffer] | None = getattr(layer, "kv_buffers", None)
    if kv_buffers is None or not (kv_buffers[0].fits(layer.keys) and kv_buffers[1].fits(layer.values)):
        layer.kv_buffers = kv_buffers = KVBuffer(layer.keys), KVBuffer(layer.values)
    return kv_buffers


def _side(states: QuantizedStates) -> Side:
    codes, scales = states.buffers()
    first, fixed = states.first, states.fixed
    before = first.data_ptr() if first.shape[2] else 0
    by_channel, by_token = (0 if scale is None else scale.data_ptr() for scale in (fixed, scales))
    room = 0 if scales is None else scales.shape[2]
    strides = first.stride(0), first.stride(1)
    return states.coding, codes.data_ptr(), by_token, by_channel, codes.shape[2], room, before, *strides
