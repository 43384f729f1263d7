"""Ranges of keys and values: what a cache is handed while blocks run.

A block is given a recorder in the place of its cache. Attention hands it the keys (after rotary embedding) and values
of the tokens and goes on with what it returns, which is the same tensors. So no model needs code of its own here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from goldstick.calibration.arguments import BlockCall
from goldstick.core.kv_cache import KVRanges
from goldstick.errors import StructureError


class KVRecorder:
    """Largest magnitudes of keys and values by layer; exact, so they do not depend on order or batching."""

    def __init__(self) -> None:
        self._ranges: dict[int, KVRanges] = {}

    @property
    def ranges(self) -> dict[int, KVRanges]:
        """Layer index → what its keys and values reached so far."""
        return dict(sorted(self._ranges.items()))

    def observe(self, keys: Tensor, values: Tensor, layer: int) -> None:
        """Take note of keys and values [batch, kv_heads, tokens, channels] of a layer."""
        seen = KVRanges(keys=_largest(keys), values=_largest(values))
        before = self._ranges.get(layer)
        if before is not None:
            seen = KVRanges(
                keys=torch.maximum(before.keys, seen.keys), values=torch.maximum(before.values, seen.values)
            )
        self._ranges[layer] = seen

    def pass_cache(self) -> RecordingCache:
        """An empty cache for one pass of one batch through one block."""
        return RecordingCache(self)


class RecordingCache:
    """A cache that keeps nothing but notes the keys and values of one pass.

    A decoder block with cross attention updates the cache twice, first with the keys of its own tokens and then with
    the encoder's. Those are of another cache, so only the first update of each layer is noted.
    """

    def __init__(self, recorder: KVRecorder) -> None:
        self._recorder = recorder
        self._noted: set[int] = set()

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Note keys and values, and hand them back."""
        if layer_idx not in self._noted:
            self._noted.add(layer_idx)
            self._recorder.observe(keys, values, layer_idx)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: no tokens came before."""
        return 0


def recording(call: BlockCall, recorder: KVRecorder) -> BlockCall:
    """A block's call with a recorder in the place of its cache; use a new one for each run of the block.

    Raises:
        StructureError: The model gave this block no cache.
    """
    if call.cache is None:
        raise StructureError(
            "A block was called without a cache, so its keys and values cannot be seen. Use the kv_cache stage on "
            "decoders only, and leave use_cache on."
        )
    if isinstance(call.cache, int):
        args = (*call.args[: call.cache], recorder.pass_cache(), *call.args[call.cache + 1 :])
        return dataclasses.replace(call, args=args)
    return dataclasses.replace(call, kwargs={**call.kwargs, call.cache: recorder.pass_cache()})


def _largest(states: Tensor) -> Tensor:
    """max|x| over batch and tokens, float32 [kv_heads, channels] on the CPU."""
    return states.detach().abs().amax(dim=(0, 2)).float().cpu()
