"""Small checkpoints whose sizes are those that the kernels of servers take: multiples of 128."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    DeepseekV3Config,
    GptOssConfig,
    LlamaConfig,
    LlavaConfig,
    MixtralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

import goldstick
from goldstick.jobs.save import finish
from tests.support.proofs import prove_here

_DENSE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
_EXPERTS: dict[str, Any] = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 256}
_LATENT: dict[str, Any] = {
    "q_lora_rank": 128, "kv_lora_rank": 128, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32,
    "n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 256, "first_k_dense_replace": 0,
}  # fmt: skip

MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**_DENSE),
    "tied": lambda: LlamaConfig(**_DENSE | {"tie_word_embeddings": True}),
    "qwen2": lambda: Qwen2Config(**{name: value for name, value in _DENSE.items() if name != "head_dim"}),
    "qwen3": lambda: Qwen3Config(**_DENSE),
    "mixtral": lambda: MixtralConfig(**_DENSE | {"num_local_experts": 2, "num_experts_per_tok": 1}),
    "qwen3_moe": lambda: Qwen3MoeConfig(**_DENSE | _EXPERTS),
    "deepseek": lambda: DeepseekV3Config(
        **{name: value for name, value in _DENSE.items() if name != "head_dim"} | _LATENT
    ),
}


_VISION: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip
MODELS |= {
    "gpt_oss": lambda: GptOssConfig(**_DENSE | {"num_local_experts": 2, "num_experts_per_tok": 1}),
    "llava": lambda: LlavaConfig(
        vision_config=CLIPVisionConfig(**_VISION), text_config=LlamaConfig(**_DENSE), tie_word_embeddings=False
    ),
}


class Workshop:
    """Float models and checkpoints of them, each made once.

    Args:
        folder: Where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.float = cache(self._float)
        self.quantized = cache(self._quantized)

    def _float(self, model: str) -> Path:
        torch.manual_seed(0)
        config = MODELS[model]()
        kind: Any = AutoModelForImageTextToText if model == "llava" else AutoModelForCausalLM
        made: PreTrainedModel = kind.from_config(config, dtype=torch.bfloat16)
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.ndim > 1 and not parameter.any():  # biases of experts, which doctor would remark
                    parameter.normal_(std=0.02)
        made.save_pretrained(self.folder / model)
        return self.folder / model

    def _quantized(self, model: str, scheme: str, form: str = "auto", exclude: tuple[str, ...] = ()) -> Path:
        targets = {"targets": {"exclude": list(exclude)}} if exclude else {}
        return self.with_stage(model, {"scheme": scheme, **targets}, form)

    def with_stage(self, model: str, stage: dict[str, Any], form: str) -> Path:
        """A checkpoint of a model, rounded to nearest by one stage."""
        output = self.folder / f"made-{len(list(self.folder.iterdir()))}"
        recipe = {"stages": [{"rtn": stage}], "export": {"format": form}}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(finish, "prove", prove_here)
            goldstick.quantize(self.float(model), recipe, output=output, proof="tensors")
        return output
