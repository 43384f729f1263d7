"""Attention of one new token for each sequence: rotation, cache and softmax in one operation, without copies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from goldstick.kernels.attention import attend
from goldstick.kernels.cpu import PRECISIONS
from goldstick.kernels.fused import in_cpp
from goldstick.kernels.prepared import runs_at_once
from goldstick.kernels.rotary import attend_token, rotate_into
from goldstick.nn.fused.cache_room import buffers_of
from goldstick.nn.fused.module_guard import ModuleGuard
from goldstick.nn.kv_cache import QuantizedStates
from goldstick.nn.linear import QuantizedLinear


class TokenAttention:
    """A faster forward of rotary attention over grouped heads, for one token a sequence; all else runs as before.

    The cache stays transformers' own ``DynamicCache``. Its layers' keys and values become views of buffers with room to
    grow, so that a token is written and nothing is copied; a cache that was cropped, reordered or copied in the
    meantime gets new buffers. Of a quantized cache the codes are read as they are. Where something inside was hooked or
    replaced, the cache's class has an ``update`` of its own, or the model was told to attend otherwise, the module's
    own forward runs.

    Args:
        module: The attention module; it has ``head_dim``, ``scaling`` and ``layer_idx``.
        query: Its projection to queries, stacked with those to keys and values, in this order.
        output: Maps the heads back.
    """

    def __init__(self, module: nn.Module, query: QuantizedLinear, output: nn.Module) -> None:
        known: Any = module
        self.module, self.query, self.output = module, query, output
        self.channels, self.scaling, self.layer = int(known.head_dim), float(known.scaling), int(known.layer_idx)
        self.heads = query.out_features // self.channels
        self.inside, self.way = ModuleGuard(module), _way_to_attend(module)
        self.config: Any = getattr(module, "config", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the module's own."""
        if not args:
            found = self.of_one_token(**kwargs)
            if found is not None:
                return found, None
        return type(self.module).forward(self.module, *args, **kwargs)

    def of_one_token(self, **given: Any) -> Tensor | None:
        """The output for one token a sequence, or ``None`` where this is another case."""
        found = self.heads_of_one_token(**given)
        if found is None:
            return None
        result: Tensor = self.output(found.flatten(1).unsqueeze(1))
        return result

    def heads_of_one_token(
        self,
        hidden_states: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        output_attentions: bool | None = False,
        **_: Any,
    ) -> Tensor | None:
        """What :meth:`of_one_token` maps back, [batch, heads, channels]."""
        if hidden_states is None or past_key_values is None or output_attentions:
            return None
        layer = self.layer_for(hidden_states, position_embeddings, attention_mask, past_key_values)
        if layer is None or position_embeddings is None or not self.inside:
            return None
        x, (cos, sin) = hidden_states, position_embeddings
        coded = type(layer).__name__ != "DynamicLayer"
        return self._over_codes(layer, x, cos, sin) if coded else self._over_floats(layer, x, cos, sin)

    def layer_for(self, x: Tensor, angles: tuple[Tensor, Tensor] | None, mask: Tensor | None, cache: Any) -> Any:
        """The layer of a cache that takes one token of each sequence here, or ``None``.

        Either transformers' ``DynamicLayer``, which holds floats, or a layer with ``QuantizedStates``.
        """
        shared = self.query.shared
        if x.ndim != 3 or x.shape[1] != 1 or shared is None or shared.learns() or not (runs_at_once(x) and in_cpp(x)):
            return None
        if angles is None or angles[0].shape[-1] != self.channels or angles[0].dtype is not x.dtype:
            return None
        if not _plain_update(cache) or _way_to_attend(self.module) != self.way:
            return None
        layers = getattr(cache, "layers", ())
        layer: Any = layers[self.layer] if self.layer < len(layers) else None
        # transformers' layers by name, since this knows no transformers; subclasses keep fewer tokens, or other things.
        floats = type(layer).__name__ == "DynamicLayer"
        coded = isinstance(getattr(layer, "key_states", None), QuantizedStates) and not layer.is_sliding
        if not (floats or coded) or not layer.is_initialized or layer.device != x.device or self.module.training:
            return None
        if layer.get_seq_length() == 0:
            return None
        if mask is not None and not _sees_all(mask, layer.get_seq_length() + 1):
            return None
        return layer

    def _over_floats(self, layer: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
        """The heads' outputs [batch, heads, channels], and the token written behind the others."""
        kv_buffers = buffers_of(layer) if layer.keys.shape[0] == len(x) else None
        assert self.query.shared is not None
        if kv_buffers is None:
            return None
        keys, values = kv_buffers
        together = self.query.shared.together(x)
        heads = attend_token(together, cos, sin, keys.buffer, values.buffer, keys.filled, self.heads, self.scaling)
        layer.keys, layer.values = keys.extended(), values.extended()
        return heads

    def _over_codes(self, layer: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
        """The same over codes, and floats before and behind them; codes never become numbers in memory."""
        keys, values = layer.key_states, layer.value_states
        batch, kv_heads = keys.codes.shape[:2]
        channels = keys.channels
        assert self.query.shared is not None
        if (
            batch != len(x)
            or channels != self.channels
            or values.channels != channels
            or values.codes.shape != keys.codes.shape
            or not keys.codes.is_cpu
        ):
            return None
        key, value = x.new_empty((batch, kv_heads, 1, channels)), x.new_empty((batch, kv_heads, 1, channels))
        q = rotate_into(self.query.shared.together(x), cos, sin, key, value, self.heads)
        layer.cumulative_length += 1
        keys.append(key)
        values.append(value)
        (key_runs, key_scales), (value_runs, value_scales) = keys.runs(), values.runs()
        return attend(q, key_runs, value_runs, self.scaling, key_scales, value_scales, keys.turned)


def _plain_update(cache: Any) -> bool:
    """Whether a cache is written as transformers writes it, told by name: a subclass may do more, or something else."""
    return str(getattr(getattr(type(cache), "update", None), "__module__", "")).startswith("transformers.")


def _way_to_attend(module: Any) -> object:
    """The name of the function that a model's attention calls."""
    return getattr(getattr(module, "config", None), "_attn_implementation", None)


def _sees_all(mask: Tensor, tokens: int) -> bool:
    """Whether a mask (what is added, or whether a token is seen) hides none of the tokens."""
    if mask.shape[-1] != tokens or not (mask.dtype is torch.bool or mask.dtype in PRECISIONS):
        return False
    return bool(mask.all()) if mask.dtype is torch.bool else not bool(mask.any())
