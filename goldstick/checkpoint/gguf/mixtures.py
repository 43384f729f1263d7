"""Records of mixtures of experts."""

from __future__ import annotations

from goldstick.checkpoint.gguf.architecture import ATTENTION, HEAD_NORMS, MLP, NORMS, PAIRS, QKV, SILU, Architecture

_EXPERT_COUNTS = {"num_experts": "LLM.EXPERT_COUNT", "num_experts_per_tok": "LLM.EXPERT_USED_COUNT"}
_LOCAL_COUNTS = {"num_local_experts": "LLM.EXPERT_COUNT", "num_experts_per_tok": "LLM.EXPERT_USED_COUNT"}
_EXPERT_WIDTH = {"moe_intermediate_size": "LLM.EXPERT_FEED_FORWARD_LENGTH"}
_EXPERTS = tuple(f"mlp.experts.{{}}.{name}_proj" for name in ("gate", "up", "down"))
_SHARED_EXPERTS = tuple(f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down"))
_LATENT = ("q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")
_DEEPSEEK_BLOCK = (
    *(*NORMS, *MLP, "mlp.gate", *_EXPERTS, *_SHARED_EXPERTS),
    *(f"self_attn.{name}" for name in (*_LATENT, "o_proj")),
)
_DEEPSEEK_KEYS = {
    "q_lora_rank": "Attention.Q_LORA_RANK",
    "kv_lora_rank": "Attention.KV_LORA_RANK",
    "first_k_dense_replace": "LLM.LEADING_DENSE_BLOCK_COUNT",
    "moe_intermediate_size": "LLM.EXPERT_FEED_FORWARD_LENGTH",
    "n_routed_experts": "LLM.EXPERT_COUNT",
    "num_experts_per_tok": "LLM.EXPERT_USED_COUNT",
    "n_shared_experts": "LLM.EXPERT_SHARED_COUNT",
    "routed_scaling_factor": "LLM.EXPERT_WEIGHTS_SCALE",
}

MIXTURES = (
    Architecture(
        name="llama",
        classes=("MixtralForCausalLM",),
        model_type="mixtral",
        modules=(
            *(*NORMS, *ATTENTION, "block_sparse_moe.gate"),
            *(f"block_sparse_moe.experts.{{}}.{name}" for name in ("w1", "w2", "w3")),
        ),
        rows=PAIRS,
        keys=_LOCAL_COUNTS,
        fixed=SILU,
        window="ignored",
        multiplies=True,
        marker="ffn_gate_exps.weight",
    ),
    Architecture(
        name="qwen2moe",
        classes=("Qwen2MoeForCausalLM",),
        model_type="qwen2_moe",
        modules=(
            *(*NORMS, *ATTENTION, "mlp.gate", *_EXPERTS, "mlp.shared_expert_gate"),
            *(f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")),
        ),
        biases=QKV,
        keys=_EXPERT_COUNTS
        | _EXPERT_WIDTH
        | {"shared_expert_intermediate_size": "LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH"},
        fixed=SILU | {"norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": ([], None)},
        needs_head=True,
    ),
    Architecture(
        name="qwen3moe",
        classes=("Qwen3MoeForCausalLM",),
        model_type="qwen3_moe",
        modules=(*NORMS, *ATTENTION, *HEAD_NORMS, "mlp.gate", *_EXPERTS),
        keys=_LOCAL_COUNTS | _EXPERT_WIDTH,
        fixed=SILU
        | {"attention_bias": False, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": ([], None)},
        multiplies=True,
    ),
    Architecture(
        name="gpt-oss",
        classes=("GptOssForCausalLM",),
        model_type="gpt_oss",
        modules=(*NORMS, *ATTENTION, "mlp.router"),
        biases=(*ATTENTION, "mlp.router"),
        loose={
            "self_attn.sinks": "attn_sinks.weight",
            "mlp.experts.down_proj": "ffn_down_exps.weight",
            "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
        },
        splits={
            "mlp.experts.gate_up_proj": ("in_turn", "ffn_gate_exps.weight", "ffn_up_exps.weight"),
            "mlp.experts.gate_up_proj_bias": ("in_turn", "ffn_gate_exps.bias", "ffn_up_exps.bias"),
        },
        transposed=("ffn_gate_exps", "ffn_down_exps"),
        keys=_LOCAL_COUNTS | {"intermediate_size": "LLM.EXPERT_FEED_FORWARD_LENGTH"},
        fixed=SILU | {"swiglu_alpha": 1.702, "swiglu_limit": 7.0},
        window="layers",
        period=2,
        truncates=False,
        needs_head=True,
    ),
    Architecture(
        name="deepseek2",
        classes=("DeepseekV2ForCausalLM",),
        model_type="deepseek_v2",
        modules=_DEEPSEEK_BLOCK,
        keys=_DEEPSEEK_KEYS,
        or_zero=("q_lora_rank",),
        says={"LLM.EXPERT_GATING_FUNC": 1, "LLM.EXPERT_WEIGHTS_NORM": False},  # transformers never adds them up to 1
        fixed=SILU | {"attention_bias": False, "mlp_bias": False, "topk_method": "greedy"},
    ),
    Architecture(
        name="deepseek2",
        classes=("DeepseekV3ForCausalLM",),
        model_type="deepseek_v3",
        modules=_DEEPSEEK_BLOCK,
        loose={"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"},
        keys=_DEEPSEEK_KEYS
        | {
            "norm_topk_prob": "LLM.EXPERT_WEIGHTS_NORM",
            "n_group": "LLM.EXPERT_GROUP_COUNT",
            "topk_group": "LLM.EXPERT_GROUP_USED_COUNT",
        },
        or_zero=("q_lora_rank",),
        says={"LLM.EXPERT_GATING_FUNC": 2},
        fixed=SILU | {"attention_bias": False, "rope_interleave": True},
        marker="exp_probs_b.bias",
    ),
)
