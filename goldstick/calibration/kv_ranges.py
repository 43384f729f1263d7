"""Ranges of keys and values: what a cache is handed while blocks run.

A block is given a recorder in the place of its cache. Attention hands it the keys (after rotary embedding) and values
of the tokens and goes on with what it returns, which is the same tensors. So no model needs code of its own here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.calibration.arguments import BlockCall
from goldstick.core.kv_cache import KVRanges
from goldstick.core.ranks import Ranks
from goldstick.errors import StructureError
from goldstick.structure.trace import is_cache, two_caches


class KVRecorder:
    """Largest magnitudes of keys and values by layer; exact, so they do not depend on order or batching.

    A pass through a block may be run again, because a weight in it has changed. Of the passes that have one number,
    only the latest counts, until :meth:`settle` says that the block is done.

    Args:
        settled: What blocks reached that were done before.
        ranks: Who sees the passes of other batches.
    """

    def __init__(self, settled: Mapping[int, KVRanges] | None = None, ranks: Ranks | None = None) -> None:
        self._ranks = ranks or Ranks()
        self._settled: dict[int, KVRanges] = dict(settled or {})
        self._passes: dict[int, RecordingCache] = {}

    @property
    def ranges(self) -> dict[int, KVRanges]:
        """Layer index → what its keys and values reached so far."""
        found = dict(self._settled)
        for cache in self._passes.values():
            _widen(found, cache.noted)
        return dict(sorted(found.items()))

    def observe(self, keys: Tensor, values: Tensor, layer: int) -> None:
        """Take note of keys and values [batch, kv_heads, tokens, channels] of a layer, for good."""
        _widen(self._settled, {layer: KVRanges(keys=_largest(keys), values=_largest(values))})

    def pass_cache(self, number: int | None = None) -> RecordingCache:
        """An empty cache for one pass of one batch through one block, which replaces an earlier one of that number."""
        cache = RecordingCache()
        self._passes[-1 - len(self._passes) if number is None else number] = cache
        return cache

    def settle(self) -> None:
        """No pass will be run again."""
        noted: dict[int, KVRanges] = {}
        for cache in self._passes.values():
            _widen(noted, cache.noted)
        for each in self._ranks.gather(noted):
            _widen(self._settled, each)
        self._settled = dict(sorted(self._settled.items()))
        self._passes = {}


class RecordingCache:
    """A cache that keeps nothing but notes the keys and values of one pass.

    A decoder block with cross attention updates the cache twice, first with the keys of its own tokens and then with
    the encoder's. Those are of another cache: they go to that, or only the first update of each layer is noted.

    Attributes:
        noted: Layer index → what its keys and values reached.
        is_updated: Layer index → whether it has the encoder's keys, as a cache for both attentions tells.
    """

    def __init__(self) -> None:
        self.noted: dict[int, KVRanges] = {}
        self.is_updated: dict[int, bool] = {}

    def stand_for(self, kind: type | None) -> None:
        """Be of the class of the two caches in whose place it is, which blocks look at; ``None`` where it was one."""
        if kind is not None:
            self.__class__ = _recording(kind)

    def __bool__(self) -> bool:
        """As of a cache."""
        return True

    @property
    def self_attention_cache(self) -> RecordingCache:
        """Itself."""
        return self

    @property
    def cross_attention_cache(self) -> RecordingCache:
        """One whose notes nobody reads."""
        return RecordingCache()

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Note keys and values, and hand them back."""
        if layer_idx not in self.noted:
            self.noted[layer_idx] = KVRanges(keys=_largest(keys), values=_largest(values))
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: no tokens came before."""
        return 0


def recording(call: BlockCall, recorder: KVRecorder, number: int | None = None) -> BlockCall:
    """A block's call with a recorder in the place of its cache; use a new one for each run of the block.

    Args:
        call: The call.
        recorder: Takes the notes.
        number: Number of the pass, where it may have to be run again; see :meth:`KVRecorder.pass_cache`.

    Raises:
        StructureError: The model gave this block no cache.
    """
    if call.cache is None:
        raise StructureError(
            "A block was called without a cache, so its keys and values cannot be seen. Use the kv_cache stage on "
            "decoders only, and leave use_cache on."
        )
    return with_cache(call, recorder.pass_cache(number))


def with_cache(call: BlockCall, cache: Any) -> BlockCall:
    """A block's call with ``cache`` where the model gave it a cache; as it is where the model gave none."""
    if call.cache is None:
        return call
    if isinstance(cache, RecordingCache):
        cache.stand_for(call.two_caches)
    if isinstance(call.cache, int):
        args = (*call.args[: call.cache], cache, *call.args[call.cache + 1 :])
        return dataclasses.replace(call, args=args)
    return dataclasses.replace(call, kwargs={**call.kwargs, call.cache: cache})


@contextmanager
def noting(blocks: Sequence[nn.Module], cache: RecordingCache) -> Iterator[None]:
    """Inside, a model's forward hands ``cache`` to its blocks in the place of its own."""

    def put(value: Any) -> Any:
        if not is_cache(value):
            return value
        cache.stand_for(two_caches(value))
        return cache

    def swap(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(put, args)), {name: put(value) for name, value in kwargs.items()}

    handles = [block.register_forward_pre_hook(swap, with_kwargs=True) for block in blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@functools.cache
def _recording(kind: type) -> type[RecordingCache]:
    return type(f"Recording{kind.__name__}", (RecordingCache, kind), {})


def _widen(ranges: dict[int, KVRanges], by: Mapping[int, KVRanges]) -> None:
    for layer, seen in by.items():
        before = ranges.get(layer, seen)
        keys, values = torch.maximum(before.keys, seen.keys), torch.maximum(before.values, seen.values)
        ranges[layer] = KVRanges(keys=keys, values=values)


def _largest(states: Tensor) -> Tensor:
    """max|x| over batch and tokens, float32 [kv_heads, channels] on the CPU."""
    return states.detach().abs().amax(dim=(0, 2)).float().cpu()
