"""Random llamas: what is made of codes keeps its scales."""

from __future__ import annotations

import pytest
import torch

from goldstick.hf.random_models import llama_config, quantized_llama
from goldstick.nn import QuantizedLinear


@pytest.mark.parametrize("scheme", ["w4a16-g32", "q4_k", "q6_k", "nvfp4a16"])
def test_codes_have_the_scales_they_were_made_with(scheme: str) -> None:
    config = llama_config(
        vocab_size=64, hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4
    )
    model = quantized_llama(config, scheme)
    layers = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    assert len(layers) == 8
    for layer in layers:
        assert len(layer.weight_scale.unique()) == 1
    assert bool(model(torch.arange(8)[None]).logits.isfinite().all())
