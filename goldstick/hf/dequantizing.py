"""``model.dequantize()`` of transformers for models on packed weights."""

from __future__ import annotations

from typing import Any

import torch

from goldstick.hf.cache import cached_decoder, quantized_cache_of, use_float_cache


class Dequantizes:
    """The part of a quantizer that makes a float model of a quantized one."""

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        """The model with float layers, the numbers of their codes and a float KV cache, in place.

        Args:
            model: The model.
            dtype: What all of it is cast to; its own where ``None``.

        Raises:
            StructureError: It was optimized.
        """
        from goldstick import surgery

        surgery.dequantize(model, dtype or model.dtype)
        if quantized_cache_of(model) is not None:
            use_float_cache(cached_decoder(model))
        return model if dtype in (None, model.dtype) else model.to(dtype)
