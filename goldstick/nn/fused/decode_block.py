"""A decoder block of one new token for each sequence in one call: what Python does between its layers takes longer."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.kernels import cpu
from goldstick.kernels.prepared import versions
from goldstick.nn.fused.feed_forward import GatedForward, NormForward
from goldstick.nn.fused.module_guard import ModuleGuard
from goldstick.nn.fused.token_attention import TokenAttention, buffers_of
from goldstick.nn.linear import QuantizedLinear

_WEIGHTS = ("weight_packed", "weight_scale", "weight_zero_point", "input_scale", "input_zero_point", "bias", "weight")
_COPIED = ("weight_packed", "weight_scale", "weight_zero_point")


class FusedDecodeBlock:
    """A faster forward of h = x + attention(norm(x)), y = h + feed_forward(norm(h)), for one token a sequence.

    It gives the bits of its parts' own faster forwards, and leaves all else to the module's own: other inputs and
    caches, parts that were hooked, replaced or given other forwards, layers that do not run in C++. Weights are read
    where they lie; after tensors were replaced or moved it is prepared anew, and it keeps none alive.

    Args:
        module: The block.
        attention: The faster forward of its attention.
        feed: That of its feed-forward.
        norms: Those of the norms before the attention and before the feed-forward.
    """

    def __init__(
        self, module: nn.Module, attention: TokenAttention, feed: GatedForward, norms: tuple[NormForward, NormForward]
    ) -> None:
        self.module, self.attention, self.feed, self.norms = module, attention, feed, norms
        self.inside = ModuleGuard(module)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("module", "attention", "feed", "norms", "inside")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()  # a copy prepares itself

    def _forget(self, _: object = None) -> None:
        self._block: Any = None
        self._shape = (0, 0, 0)  # width, heads of the cache and their channels
        self._where: list[tuple[dict[str, Any], str]] = []  # each tensor that the block reads
        self._seen: list[Callable[[], Tensor | None]] = []
        self._places: list[int] = []
        self._copied: list[Callable[[], Tensor | None]] = []  # those of which the block reads a copy
        self._versions: list[int | None] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the module's own."""
        found = self.of_one_token(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs) if found is None else found

    def of_one_token(self, x: Tensor | None = None, *more: Any, **given: Any) -> Tensor | None:
        """The block's output for one token a sequence, or ``None`` where this is another case."""
        x = given.get("hidden_states", x)
        angles, cache = given.get("position_embeddings"), given.get("past_key_values")
        if x is None or more or cache is None or angles is None or given.get("output_attentions"):
            return None
        layer = self.attention.layer_for(x, angles, given.get("attention_mask"), cache)
        if type(layer).__name__ != "DynamicLayer" or layer.keys.shape[0] != len(x) or layer.keys.dtype is not x.dtype:
            return None
        if not self.inside:
            return None
        block, kv_buffers = self._prepared(x.dtype), buffers_of(layer)
        if block is None or kv_buffers is None:
            return None
        if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in self._now()):
            return None
        keys, values = kv_buffers
        (cos, sin), (batch, kv_heads, capacity, channels) = angles, keys.buffer.shape
        if (x.shape[2], kv_heads, channels) != self._shape or cos.shape not in ((1, 1, channels), (batch, 1, channels)):
            return None
        if sin.shape != cos.shape or sin.dtype is not x.dtype or values.buffer.dtype is not x.dtype:
            return None
        x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
        y = torch.empty_like(x)
        done = block.run(
            x.data_ptr(),
            y.data_ptr(),
            batch,
            cos.data_ptr(),
            sin.data_ptr(),
            channels if cos.shape[0] > 1 else 0,
            keys.buffer.data_ptr(),
            values.buffer.data_ptr(),
            capacity,
            keys.filled,
            torch.get_num_threads(),
        )
        if not done:
            return None
        layer.keys, layer.values = keys.extended(), values.extended()
        return y

    def _prepared(self, dtype: torch.dtype) -> Any:
        """The block in C++, or ``None`` where its layers do not run there."""
        if self._block is None or self._changed():
            self._prepare()
        return self._block if self.norms[0].module._parameters["weight"].dtype is dtype else None  # type: ignore[union-attr]

    def _now(self) -> list[Tensor | None]:
        return [store[name] for store, name in self._where]

    def _watch(self, copied: list[Tensor | None]) -> None:
        """Note where each tensor lies that the block reads, and which it is."""
        owners = [store for child in self.module.modules() for store in (child._buffers, child._parameters)]
        self._where = [(store, name) for store in owners for name in _WEIGHTS if name in store]
        now = self._now()
        self._seen, self._places = [self._reference(tensor) for tensor in now], _places(now)
        self._copied, self._versions = [self._reference(tensor) for tensor in copied], versions(copied)

    def _reference(self, tensor: Tensor | None) -> Callable[[], Tensor | None]:
        """What gives a tensor as long as others hold it; the block in C++ goes with it."""
        return _nothing if tensor is None else weakref.ref(tensor, self._forget)

    def _changed(self) -> bool:
        """Whether tensors were replaced or moved, or those changed of which there is a copy."""
        now = self._now()
        return (
            any(seen() is not tensor for seen, tensor in zip(self._seen, now, strict=True))
            or self._places != _places(now)
            or self._versions != versions([copied() for copied in self._copied])
        )

    def _prepare(self) -> None:
        self._block = None
        wide, gated = self.attention.query.shared, self.feed.gate.shared
        output, down = self.attention.output, self.feed.down
        if wide is None or gated is None or not isinstance(output, QuantizedLinear):
            return
        if not isinstance(down, QuantizedLinear) or output.shared is not None or down.shared is not None:
            return
        projections, pair = wide.wholes(), gated.wholes()
        if len(pair) != 1:
            return
        linears = *projections, output, *pair, down
        layers = [layer.ready() for layer in linears]
        weights = [norm.module._parameters["weight"] for norm in self.norms]
        dtype = output.weight_scale.dtype
        if any(layer is None for layer in layers):
            return
        if not all(weight is not None and weight.dtype is dtype and weight.is_contiguous() for weight in weights):
            return
        first, second = self.norms
        channels = self.attention.channels
        kv_heads = (sum(whole.out_features for whole in projections) // channels - self.attention.heads) // 2
        self._shape = output.out_features, kv_heads, channels
        self._block = cpu._C.PreparedBlock(
            layers[: len(projections)],
            *layers[len(projections) :],
            *[weight.data_ptr() for weight in weights if weight is not None],
            first.epsilon,
            second.epsilon,
            self.attention.heads,
            kv_heads,
            channels,
            self.attention.scaling,
        )
        copied = [linear for linear, layer in zip(linears, layers, strict=True) if layer.interleaved]
        self._watch([getattr(linear, name) for linear in copied for name in _COPIED])


def _places(tensors: list[Tensor | None]) -> list[int]:
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def _nothing() -> None:
    return None
