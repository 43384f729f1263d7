"""The quantized cache as transformers uses it, and the hook that gives it to a model.

Layers of transformers' own cache are replaced by :class:`QuantizedLayer`, which keeps codes and hands attention
what they stand for. A model with the hook of :func:`use_quantized_cache` gets such a cache in every way it runs:
``generate``, a forward with a fresh cache, and a plain forward, whose outputs therefore show what the cache costs.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)

from goldstick.core.kv_cache import KVScheme, KVSettings
from goldstick.errors import QuantizationError, StructureError
from goldstick.hf.unasked_cache import hand_unasked, keep_unasked, mark_unasked

if TYPE_CHECKING:
    from goldstick.nn.kv_cache import QuantizedStates

_CACHE = "past_key_values"


class QuantizedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # of its __init_subclass__
    """One layer's keys and values as codes; grows token by token, up to the window of a sliding layer.

    ``keys`` and ``values`` are what the codes stand for, made anew at each reading.
    """

    is_croppable = True
    key_states: QuantizedStates | None
    value_states: QuantizedStates | None

    def __init__(self, settings: KVSettings, index: int, sliding_window: int | None = None) -> None:
        scales = settings.scales.get(index)
        if settings.scheme.mode == "static" and scales is None:
            known = ", ".join(map(str, settings.scales))
            raise QuantizationError(
                f"The static KV cache has no scales for layer {index}, only for {known}: it is of another model."
            )
        self.settings, self.scales = settings, scales
        self.sliding_window = sliding_window
        self.is_sliding = sliding_window is not None
        self.record_past = False
        self.reset()

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """Dequantized keys [batch, kv_heads, tokens, channels], ``None`` before the first token."""
        return None if self.key_states is None else self.key_states.dequantized()

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """Dequantized values."""
        return None if self.value_states is None else self.value_states.dequantized()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(states.nbytes for states in self._states())

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make empty stores for the shapes, dtype and device of the first tokens."""
        from goldstick.nn.kv_cache import QuantizedStates  # modules and kernels, which a plan does without

        scheme, scales = self.settings.scheme, self.scales
        options: Any = {name: getattr(scheme, name) for name in ("window", "sinks", "dtype", "rotate")}
        self.dtype, self.device = key_states.dtype, key_states.device
        self.key_states = QuantizedStates(key_states, scales.keys if scales else None, **options)
        self.value_states = QuantizedStates(value_states, scales.values if scales else None, **options)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add tokens and return all that attention is to see, dequantized."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.key_states is not None and self.value_states is not None
        self.cumulative_length += key_states.shape[-2]
        self.key_states.append(key_states)
        self.value_states.append(value_states)
        keys, values = self.key_states.dequantized(), self.value_states.dequantized()
        if self.sliding_window is None:
            return keys, values
        visible = self.sliding_window - 1 + key_states.shape[-2]
        if not self.record_past:
            self._keep_newest(self.sliding_window - 1)
        return keys[:, :, -visible:], values[:, :, -visible:]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys a query of this length sees, and the position of the first."""
        past = self.cumulative_length
        if self.sliding_window is not None:
            past = min(past, self.sliding_window - 1)
        return past + query_length, self.cumulative_length - past

    def get_seq_length(self) -> int:
        """Tokens seen."""
        return self.cumulative_length

    def get_max_length(self) -> int:
        """The sliding window, or −1."""
        return -1 if self.sliding_window is None else self.sliding_window

    def activate_past_recording(self) -> None:
        """Keep tokens that leave the sliding window until the next ``crop``, which may want them back."""
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the newest −``tokens_to_remove`` tokens."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes minus the number of tokens to remove, not {tokens_to_remove}.")
        full = self.sliding_window is not None and self.cumulative_length >= self.sliding_window
        if full and not self.record_past:
            raise RuntimeError("A full sliding window cannot be cropped unless activate_past_recording came before.")
        for states in self._states():
            states.drop_last(-tokens_to_remove)
        self.cumulative_length = max(self.cumulative_length + tokens_to_remove, 0)
        if self.sliding_window is not None:
            self._keep_newest(self.sliding_window - 1)

    def reset(self) -> None:
        """Forget everything."""
        self.key_states = self.value_states = None
        self.cumulative_length = 0
        self.is_initialized = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Put the rows of the batch in the order of the surviving beams."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep given rows of the batch."""
        for states in self._states():
            states.select_rows(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        for states in self._states():
            states.repeat_rows(repeats)

    def offload(self) -> None:
        """Move to the CPU."""
        for states in self._states():
            states.move("cpu")

    def prefetch(self) -> None:
        """Move back to where the model is."""
        for states in self._states():
            states.move(self.device)

    def _states(self) -> list[QuantizedStates]:
        return [states for states in (self.key_states, self.value_states) if states is not None]

    def _keep_newest(self, tokens: int) -> None:
        for states in self._states():
            states.drop_first(len(states) - tokens)


class QuantizedCache(DynamicCache):
    """A cache with quantized keys and values, to be handed to ``generate`` or a forward as ``past_key_values``.

    Args:
        config: The model's config, which says which layers have a cache, and which a sliding window.
        settings: How to store keys and values.

    Raises:
        QuantizationError: A layer has no scales.
        StructureError: A layer's cache is of a kind that cannot be quantized.
    """

    def __init__(self, config: Any, settings: KVSettings) -> None:
        super().__init__(config=config)
        _quantize_layers(self, config, settings)

    @property
    def nbytes(self) -> int:
        """Bytes that keys and values take, scales included."""
        return sum(layer.nbytes for layer in self.layers if isinstance(layer, QuantizedLayer))


def use_quantized_cache(model: nn.Module, settings: KVSettings) -> None:
    """Let a transformers model store its keys and values as ``settings`` says, from now on; replaces earlier settings.

    Hooks of the decoder see to it; ``generate`` and the model's code stay as they are. A cache that the caller made and
    filled, or one that is no ``DynamicCache``, is used as it is. In training mode nothing is quantized: rounding has no
    gradient. Of an encoder-decoder, the decoder's self attention is; its cross attention stays in float.

    Raises:
        QuantizationError: A layer has no scales.
        StructureError: The model is no decoder, or a layer's cache is of a kind that cannot be quantized.
    """
    decoder = cached_decoder(model)
    QuantizedCache(decoder.config, settings)  # which checks both
    use_float_cache(decoder)
    decoder.register_forward_pre_hook(_GiveCache(settings), with_kwargs=True)
    keep_unasked(decoder)


def use_float_cache(decoder: nn.Module) -> None:
    """Let a decoder store keys and values in float again."""
    for key, hook in list(decoder._forward_pre_hooks.items()):
        if isinstance(hook, _GiveCache):
            del decoder._forward_pre_hooks[key]
    hand_unasked(decoder)


def new_cache(config: Any, settings: KVSettings, *, encoded: bool = False) -> Cache:
    """The empty cache that a decoder of this config works on; with one for what an encoder gave it, ``encoded``.

    Raises:
        QuantizationError: A layer has no scales.
    """
    made: Cache = QuantizedCache(config, settings)
    if encoded or getattr(config, "is_encoder_decoder", False):
        made = EncoderDecoderCache(made, DynamicCache(config=config))
    return made


def quantized_layers(config: Any) -> list[int]:
    """Indices of the layers whose keys and values a quantized cache for this config stores."""
    layers = QuantizedCache(config, KVSettings(scheme=KVScheme(mode="dynamic", keys="head"), scales={})).layers
    return [index for index, layer in enumerate(layers) if isinstance(layer, QuantizedLayer)]


def quantized_cache_of(model: nn.Module) -> KVSettings | None:
    """What :func:`use_quantized_cache` was last told for a model, if anything."""
    hooks = (hook for module in model.modules() for hook in module._forward_pre_hooks.values())
    return next((hook.settings for hook in hooks if isinstance(hook, _GiveCache)), None)


class _GiveCache:
    """Forward hook of a decoder: whatever it is called with, it works on a quantized cache."""

    def __init__(self, settings: KVSettings) -> None:
        self.settings = settings

    def __call__(
        self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if decoder.training:
            return None
        names = list(inspect.signature(decoder.forward).parameters)
        place, passed = names.index(_CACHE), dict(zip(names, args, strict=False)) | kwargs
        if passed.get(_CACHE) is not None:
            self._adopt(passed[_CACHE], decoder.config)
            return None
        made = new_cache(decoder.config, self.settings, encoded=passed.get("encoder_hidden_states") is not None)
        mark_unasked(made, passed, decoder.config)
        if len(args) > place:
            return (*args[:place], made, *args[place + 1 :]), kwargs
        return args, {**kwargs, _CACHE: made}

    def _adopt(self, cache: Any, config: Any) -> None:
        """Make an empty cache of transformers quantized, in place, since the caller holds on to it."""
        if isinstance(cache, EncoderDecoderCache):
            cache = cache.self_attention_cache
        if type(cache) is DynamicCache and not any(getattr(layer, "is_initialized", False) for layer in cache.layers):
            _quantize_layers(cache, config, self.settings)


def _quantize_layers(cache: Any, config: Any, settings: KVSettings) -> None:
    layers = cache.layers or DynamicCache(config=config).layers
    cache.layers = [_quantized_layer(layer, index, settings) for index, layer in enumerate(layers)]
    cache.layer_class_to_replicate = None


def _quantized_layer(layer: Any, index: int, settings: KVSettings) -> Any:
    if type(layer) is DynamicLayer:
        return QuantizedLayer(settings, index)
    if type(layer) is DynamicSlidingWindowLayer:
        return QuantizedLayer(settings, index, layer.sliding_window)
    if isinstance(layer, CacheLayerMixin):
        raise StructureError(
            f"Layer {index} keeps its keys and values in a {type(layer).__name__}, which cannot be quantized; leave "
            "the kv_cache stage out."
        )
    return layer  # linear attention and layers that share another's cache hold no keys and values


def cached_decoder(model: Any) -> Any:
    """The decoder of a model, which is what keeps keys and values.

    Raises:
        StructureError: The model has none.
    """
    decoder: Any = model.get_decoder() if hasattr(model, "get_decoder") else None
    takes_one = decoder is not None and _CACHE in inspect.signature(decoder.forward).parameters
    # An encoder takes the argument too, and has no use for it.
    if takes_one and (model.can_generate() or any(getattr(module, "is_causal", False) for module in decoder.modules())):
        return decoder
    raise StructureError(f"{type(model).__name__} has no decoder with a KV cache; leave the kv_cache stage out.")
