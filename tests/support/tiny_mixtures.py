"""Tiny random mixtures of experts: two layers, hidden 64, four experts of which two are chosen, float32."""

from __future__ import annotations

from collections.abc import Callable

from transformers import (
    AriaConfig,
    AriaForConditionalGeneration,
    AriaTextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    Idefics3VisionConfig,
    Llama4ForCausalLM,
    Llama4TextConfig,
    OlmoeConfig,
    OlmoeForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from tests.support.tiny_models import FAMILIES, GROUPED, VOCABULARY, tiny

MIXTURES: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt_oss": tiny(
        GptOssForCausalLM,
        GptOssConfig(
            **GROUPED | {"intermediate_size": 32},
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
        ),
    ),
    "qwen3_moe": FAMILIES["qwen3_moe"],
    "qwen3_next": tiny(
        Qwen3NextForCausalLM,
        Qwen3NextConfig(
            **GROUPED,
            head_dim=16,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            layer_types=["linear_attention", "full_attention"],
        ),
    ),
    "deepseek_v3": FAMILIES["deepseek_v3"],
    "llama4": tiny(
        Llama4ForCausalLM,
        Llama4TextConfig(
            **GROUPED,
            head_dim=16,
            intermediate_size_mlp=64,
            num_local_experts=4,
            num_experts_per_tok=1,
            interleave_moe_layer_step=1,
            attention_chunk_size=32,
        ),
    ),
    "mixtral": FAMILIES["mixtral"],
    "aria": tiny(
        AriaForConditionalGeneration,
        AriaConfig(
            text_config=AriaTextConfig(
                **GROUPED | {"intermediate_size": 32}, moe_num_experts=4, moe_topk=2, moe_num_shared_experts=2
            ),
            vision_config=Idefics3VisionConfig(
                hidden_size=64,
                intermediate_size=64,
                num_hidden_layers=1,
                num_attention_heads=4,
                image_size=16,
                patch_size=8,
            ),
            projector_patch_to_query_dict={4: 4},
            image_token_index=VOCABULARY - 1,
        ),
    ),
    "olmoe": tiny(
        OlmoeForCausalLM,
        OlmoeConfig(**GROUPED | {"intermediate_size": 32}, num_experts=4, num_experts_per_tok=2),
    ),
}
