"""Tiny random models of many families, for tests: two layers, hidden 64, float32, no downloads.

Weights are drawn larger than the default initialisation, norms get random gains and shifts, and biases are
not zero, so that an edit that forgets one of them changes the output by an amount that can be seen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BloomConfig,
    BloomForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

VOCABULARY = 128

#: The shape that most families share under these names.
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED: dict[str, Any] = {**_SHAPE, "num_key_value_heads": 2}
_MHA: dict[str, Any] = {**_SHAPE, "num_key_value_heads": 4}


def _randomise(model: PreTrainedModel, seed: int) -> None:
    """Draw every parameter and every buffer of a batch norm anew.

    Matrices N(0, 1.5 / fan_in), embeddings N(0, 1), gains log-uniform in [0.5, 2] (their excess
    over 1 where the norm multiplies by 1 + weight), other vectors N(0, 0.2²).
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(like: Tensor, deviation: float) -> Tensor:
        return torch.randn(like.shape, generator=generator) * deviation

    for module in model.modules():
        is_norm = "Norm" in type(module).__name__
        offset = 1.0 if "Gemma" in type(module).__name__ else 0.0
        for name, parameter in module.named_parameters(recurse=False):
            if is_norm and name == "weight":
                gain = torch.exp2(torch.rand(parameter.shape, generator=generator) * 2 - 1)
                parameter.data.copy_(gain - offset)
            elif parameter.ndim < 2:
                parameter.data.copy_(normal(parameter, 0.2))
            elif isinstance(module, nn.Embedding):
                parameter.data.copy_(normal(parameter, 1.0))
            elif isinstance(module, nn.Conv2d):
                parameter.data.copy_(normal(parameter, (1.5 / parameter[0].numel()) ** 0.5))
            else:
                fan_in = parameter.shape[-2 if type(module).__name__ == "Conv1D" else -1]
                parameter.data.copy_(normal(parameter, (1.5 / fan_in) ** 0.5))
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.copy_(normal(module.running_mean, 0.2))
            assert module.running_var is not None
            module.running_var.copy_(torch.exp2(torch.rand(module.running_var.shape, generator=generator)))


def tiny(family: type[PreTrainedModel], config: Any, seed: int = 0) -> Callable[[], PreTrainedModel]:
    def build() -> PreTrainedModel:
        own = copy.deepcopy(config)  # a test may change a model's config
        own._attn_implementation = "eager"
        model = family(own).to(torch.float32).eval()
        _randomise(model, seed)
        return model

    return build


def meta_model(family: str) -> PreTrainedModel:
    """The same model as ``FAMILIES[family]()`` on the meta device: shapes, but no numbers."""
    return FAMILIES[family]().to("meta")


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama_mha": tiny(LlamaForCausalLM, LlamaConfig(**_MHA)),
    "llama_gqa": tiny(LlamaForCausalLM, LlamaConfig(**GROUPED)),
    "mistral": tiny(MistralForCausalLM, MistralConfig(**GROUPED, sliding_window=None)),
    "qwen2": tiny(Qwen2ForCausalLM, Qwen2Config(**GROUPED)),
    "qwen3": tiny(Qwen3ForCausalLM, Qwen3Config(**GROUPED, head_dim=16)),
    "gemma2": tiny(Gemma2ForCausalLM, Gemma2Config(**GROUPED, head_dim=16, query_pre_attn_scalar=16)),
    "gemma3": tiny(Gemma3ForCausalLM, Gemma3TextConfig(**GROUPED, head_dim=16, query_pre_attn_scalar=16)),
    "phi3": tiny(Phi3ForCausalLM, Phi3Config(**GROUPED)),
    "opt": tiny(
        OPTForCausalLM,
        OPTConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            word_embed_proj_dim=64,
            ffn_dim=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=128,
        ),
    ),
    "gpt2": tiny(
        GPT2LMHeadModel,
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=64,
            n_layer=2,
            n_head=4,
            n_positions=128,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "gpt_neox": tiny(GPTNeoXForCausalLM, GPTNeoXConfig(**_SHAPE)),
    "falcon": tiny(
        FalconForCausalLM,
        FalconConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            ffn_hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            multi_query=True,
            parallel_attn=True,
            bias=False,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "bloom": tiny(
        BloomForCausalLM,
        BloomConfig(vocab_size=VOCABULARY, hidden_size=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2),
    ),
    "mixtral": tiny(MixtralForCausalLM, MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2)),
    "qwen3_moe": tiny(
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            **GROUPED,
            head_dim=16,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            decoder_sparse_step=1,
            norm_topk_prob=True,
        ),
    ),
    "deepseek_v3": tiny(
        DeepseekV3ForCausalLM,
        DeepseekV3Config(
            **_MHA,
            moe_intermediate_size=32,
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=32,
            kv_lora_rank=32,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=16,
        ),
    ),
    "bert": tiny(BertForQuestionAnswering, BertConfig(**_SHAPE)),
    "t5": tiny(
        T5ForConditionalGeneration,
        T5Config(
            vocab_size=VOCABULARY,
            d_model=64,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
        ),
    ),
    "vit": tiny(
        ViTForImageClassification,
        ViTConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=16,
            patch_size=8,
            num_channels=3,
            num_labels=10,
        ),
    ),
    "resnet": tiny(
        ResNetForImageClassification,
        ResNetConfig(
            num_channels=3,
            embedding_size=32,
            hidden_sizes=[32, 64],
            depths=[2, 2],
            layer_type="basic",
            num_labels=10,
        ),
    ),
}


def sample_inputs(model: PreTrainedModel, *, tokens: int = 24, batch: int = 2) -> dict[str, Tensor]:
    """Random inputs of the kind that the model wants, on its device: ids, an image, or two ids."""
    generator = torch.Generator().manual_seed(7)
    device = next(model.parameters()).device
    config = model.config
    if model.main_input_name == "pixel_values":
        side = getattr(config, "image_size", 32)
        return {"pixel_values": torch.randn(batch, 3, side, side, generator=generator).to(device)}
    ids = torch.randint(3, VOCABULARY, (batch, tokens), generator=generator).to(device)
    if config.is_encoder_decoder:
        decoder = torch.randint(3, VOCABULARY, (batch, tokens // 2), generator=generator).to(device)
        return {"input_ids": ids, "decoder_input_ids": decoder}
    return {"input_ids": ids}


def output_tensor(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """The one tensor that says what the model answers: logits, start logits or the last hidden state."""
    with torch.no_grad():
        output = model(**inputs)
    for name in ("logits", "start_logits", "last_hidden_state"):
        if getattr(output, name, None) is not None:
            found: Tensor = getattr(output, name)
            return found
    raise AssertionError(f"{type(model).__name__} returned no logits, start_logits or last_hidden_state.")
