"""Which models a recipe with a KV cache is refused for, while planning."""

from __future__ import annotations

from torch import nn

from goldstick.algorithms.stage import CacheQuantizer
from goldstick.hf.cache import cached_decoder, quantized_layers
from goldstick.recipes.resolve import Resolution


def refuse_without_cache(model: nn.Module, resolution: Resolution) -> None:
    """Refuse a recipe with a KV cache for a model that has none, or one of a kind that cannot be quantized.

    Raises:
        StructureError: It is one of these; no weight was read.
    """
    if resolution.of(CacheQuantizer):
        quantized_layers(cached_decoder(model).config)
