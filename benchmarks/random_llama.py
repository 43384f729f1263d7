"""Llamas of known sizes, made with random weights in place of gigabytes of downloads."""

from __future__ import annotations

from typing import Any

from goldstick.hf.random_models import llama_config

SHAPES: dict[str, dict[str, int]] = {
    "1.1B": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
    "160M": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
    },
}
"""TinyLlama's shape, and that of a Llama of 160 million parameters."""


def config(shape: str, layers: int | None = None) -> Any:
    """The config of a shape, perhaps with fewer layers."""
    sizes = SHAPES[shape] | ({} if layers is None else {"num_hidden_layers": layers})
    return llama_config(**sizes, vocab_size=32000, max_position_embeddings=4096, rms_norm_eps=1e-5)
