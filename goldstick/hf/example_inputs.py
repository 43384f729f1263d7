"""Inputs to try a model with, where its config says what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def fixed_inputs(model: nn.Module) -> dict[str, Tensor]:
    """Inputs of a transformers model that are the same every time: 4 sequences of 16 tokens, or 2 images."""
    config: Any = model.config
    generator = torch.Generator().manual_seed(0)
    if getattr(model, "main_input_name", "input_ids") == "pixel_values":
        size = getattr(config, "image_size", None) or 64
        height, width = (size, size) if isinstance(size, int) else size
        channels = getattr(config, "num_channels", 3)
        return {"pixel_values": torch.randn(2, channels, height, width, generator=generator).to(_dtype(model))}
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = int(text_config.vocab_size)
    ids = torch.randint(0, vocabulary, (4, 16), generator=generator)
    inputs = {"input_ids": ids}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids[:, :8]
    return inputs


def inputs_for(model: nn.Module, batches: Sequence[Mapping[str, Tensor]] = ()) -> Mapping[str, Any] | None:
    """Some keyword arguments of a model's forward, to try it with; ``None`` where nothing says what they are."""
    if not hasattr(model, "config"):
        return batches[0] if batches else None
    device = next(model.parameters()).device
    on_meta = device.type == "meta"
    return {name: value if on_meta else value.to(device) for name, value in fixed_inputs(model).items()}


def _dtype(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
