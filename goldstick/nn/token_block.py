"""A decoder block of one new token for each sequence in one call: what Python does between its layers takes longer."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.kernels import cpu
from goldstick.kernels.prepared import versions
from goldstick.nn.feed_forward import GatedForward, NormForward
from goldstick.nn.linear import QuantizedLinear
from goldstick.nn.token_attention import TokenAttention, rooms_of

_WEIGHTS = ("weight_packed", "weight_scale", "weight_zero_point", "input_scale", "input_zero_point", "bias", "weight")
_COPIED = ("weight_packed", "weight_scale", "weight_zero_point")


class TokenBlock:
    """A faster forward of h = x + attention(norm(x)), y = h + feed_forward(norm(h)), for one token a sequence.

    It gives the bits of its parts' own faster forwards, and leaves all else to the module's own: other inputs and
    caches, parts that were hooked or given other forwards, layers that do not run in C++. Weights are read where they
    lie; tensors that were replaced are prepared anew.

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
        self._parts = (attention, feed, *norms)
        self._children = tuple(child for child in module.modules() if child is not module)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        named = ("module", "attention", "feed", "norms", "_parts", "_children")
        return {name: self.__dict__[name] for name in named}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()  # a copy prepares itself

    def _forget(self) -> None:
        self._block: Any = None
        self._shape = (0, 0, 0)  # width, heads of the cache and their channels
        self._where: list[tuple[dict[str, Any], str]] = []  # each tensor that the block reads
        self._seen: list[Tensor | None] = []
        self._parameters: list[nn.Parameter] = []
        self._places: list[int] = []
        self._copied: list[Tensor | None] = []  # those of which the block reads a copy
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
        if any(child._forward_hooks or child._forward_pre_hooks for child in self._children):
            return None
        if any(part.module.__dict__.get("forward") is not part for part in self._parts):
            return None
        layer = self.attention.layer_for(x, angles, given.get("attention_mask"), cache)
        if type(layer).__name__ != "DynamicLayer" or layer.keys.shape[0] != len(x) or layer.keys.dtype is not x.dtype:
            return None
        block, rooms = self._prepared(x.dtype), rooms_of(layer)
        if block is None or rooms is None:
            return None
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self._parameters):
            return None
        keys, values = rooms
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

    def _watch(self) -> None:
        """Note where each tensor lies that the block reads, and which it is."""
        owners = [store for child in self.module.modules() for store in (child._buffers, child._parameters)]
        self._where = [(store, name) for store in owners for name in _WEIGHTS if name in store]
        self._seen = [store[name] for store, name in self._where]
        # Moving a module gives a parameter other memory, and a buffer's place to another tensor.
        self._parameters = [tensor for tensor in self._seen if isinstance(tensor, nn.Parameter)]
        self._places = [parameter.data_ptr() for parameter in self._parameters]
        self._versions = versions(self._copied)

    def _changed(self) -> bool:
        """Whether tensors were replaced."""
        now = [store[name] for store, name in self._where]
        return (
            not all(map(operator.is_, now, self._seen))
            or self._places != [parameter.data_ptr() for parameter in self._parameters]
            or self._versions != versions(self._copied)
        )

    def _prepare(self) -> None:
        self._block = None
        wide, gated = self.attention.query.shared, self.feed.gate.shared
        output, down = self.attention.output, self.feed.down
        if wide is None or gated is None or not isinstance(output, QuantizedLinear):
            return
        if not isinstance(down, QuantizedLinear) or output.shared is not None or down.shared is not None:
            return
        linears = wide.whole(), output, gated.whole(), down
        layers = [layer.ready() for layer in linears]
        weights = [norm.module._parameters["weight"] for norm in self.norms]
        dtype = output.weight_scale.dtype
        if any(layer is None for layer in layers):
            return
        if not all(weight is not None and weight.dtype is dtype and weight.is_contiguous() for weight in weights):
            return
        first, second = self.norms
        channels = self.attention.channels
        kv_heads = (wide.whole().out_features // channels - self.attention.heads) // 2
        self._shape = output.out_features, kv_heads, channels
        self._block = cpu._C.PreparedBlock(
            *layers,
            *[weight.data_ptr() for weight in weights if weight is not None],
            first.epsilon,
            second.epsilon,
            self.attention.heads,
            kv_heads,
            channels,
            self.attention.scaling,
        )
        copied = [linear for linear, layer in zip(linears, layers, strict=True) if layer.interleaved]
        self._copied = [linear._buffers[name] for linear in copied for name in _COPIED]
        self._watch()
