"""Tiny random models of every architecture that GGUF files are written of, each with what is peculiar to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import (
    BertConfig,
    BertModel,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from tests.support.tiny_models import GROUPED, tiny

_ALONE = {key: value for key, value in GROUPED.items() if key != "num_key_value_heads"}
_GEMMA: dict[str, Any] = {**GROUPED, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8}
_LAYERS = ["sliding_attention", "full_attention"]
_LATENT: dict[str, Any] = {
    **GROUPED,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 16,
}
_FALCON: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}

#: Name → builder. Where the name of the architecture is not the whole, what is peculiar follows it.
GGUF_MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": tiny(LlamaForCausalLM, LlamaConfig(**GROUPED)),
    "mistral": tiny(MistralForCausalLM, MistralConfig(**GROUPED, sliding_window=None)),
    "qwen2": tiny(Qwen2ForCausalLM, Qwen2Config(**GROUPED)),
    "qwen2_yarn": tiny(Qwen2ForCausalLM, Qwen2Config(**GROUPED, rope_parameters=_YARN)),
    "qwen3": tiny(Qwen3ForCausalLM, Qwen3Config(**GROUPED, head_dim=128)),
    "granite": tiny(
        GraniteForCausalLM,
        GraniteConfig(
            **GROUPED,
            attention_multiplier=0.2,
            embedding_multiplier=3.0,
            residual_multiplier=0.5,
            logits_scaling=2.0,
        ),
    ),
    "olmo2": tiny(Olmo2ForCausalLM, Olmo2Config(**GROUPED)),
    "starcoder2": tiny(Starcoder2ForCausalLM, Starcoder2Config(**GROUPED, sliding_window=64)),
    "phi3": tiny(Phi3ForCausalLM, Phi3Config(**GROUPED)),
    "phi3_longrope": tiny(
        Phi3ForCausalLM,
        Phi3Config(
            **GROUPED | {"max_position_embeddings": 1024},
            original_max_position_embeddings=512,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
                "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0],
                "short_factor": [1.0, 1.0, 1.25, 1.25, 1.5, 1.5],
                "original_max_position_embeddings": 512,
            },
        ),
    ),
    "gemma": tiny(GemmaForCausalLM, GemmaConfig(**GROUPED, head_dim=32)),
    "gemma2": tiny(Gemma2ForCausalLM, Gemma2Config(**_GEMMA, layer_types=_LAYERS)),
    "gemma3": tiny(Gemma3ForCausalLM, Gemma3TextConfig(**_GEMMA, layer_types=_LAYERS)),
    "mixtral": tiny(MixtralForCausalLM, MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2)),
    "qwen2_moe": tiny(
        Qwen2MoeForCausalLM,
        Qwen2MoeConfig(
            **GROUPED,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=96,
        ),
    ),
    "qwen3_moe": tiny(
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            **GROUPED,
            head_dim=128,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            norm_topk_prob=True,
        ),
    ),
    "gpt_oss": tiny(
        GptOssForCausalLM,
        GptOssConfig(
            **GROUPED | {"intermediate_size": 32},
            head_dim=32,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
            layer_types=_LAYERS,
        ),
    ),
    "deepseek_v2": tiny(DeepseekV2ForCausalLM, DeepseekV2Config(**_LATENT)),
    "deepseek_v2_lite": tiny(DeepseekV2ForCausalLM, DeepseekV2Config(**_LATENT | {"q_lora_rank": None})),
    "deepseek_v3": tiny(
        DeepseekV3ForCausalLM,
        DeepseekV3Config(
            **_LATENT | {"n_routed_experts": 8},
            n_group=2,
            topk_group=1,
            rope_parameters=_YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        ),
    ),
    "gpt2": tiny(
        GPT2LMHeadModel,
        GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2),
    ),
    "falcon": tiny(FalconForCausalLM, FalconConfig(**_FALCON, multi_query=True)),
    "falcon_new": tiny(FalconForCausalLM, FalconConfig(**_FALCON, new_decoder_architecture=True, num_kv_heads=2)),
    "bert": tiny(BertModel, BertConfig(**_ALONE)),
}
