"""Records of models with names of their own for everything: GPT-2, Falcon and BERT."""

from __future__ import annotations

from goldstick.checkpoint.gguf.architecture import GELU, Architecture
from goldstick.checkpoint.gguf.rows import grouped_heads

_FALCON_OUTER = ("transformer.word_embeddings", "transformer.ln_f", "lm_head")
_FALCON_NAMES = {
    "num_key_value_heads": "num_kv_heads",
    "intermediate_size": "ffn_hidden_size",
    "head_dim": "",
}
_FALCON_FIXED = {"activation": GELU, "alibi": False, "parallel_attn": True, "bias": False}
_FALCON_BLOCK = ("self_attention.query_key_value", "self_attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
_GPT2_BLOCK = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
_BERT_OUTER = tuple(
    f"embeddings.{name}" for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
)
_BERT_BLOCK = (
    *(f"attention.self.{name}" for name in ("query", "key", "value")),
    *("attention.output.dense", "attention.output.LayerNorm"),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
)

OLDER = (
    Architecture(
        name="gpt2",
        classes=("GPT2LMHeadModel",),
        model_type="gpt2",
        outer=("transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head"),
        block="transformer.h",
        modules=_GPT2_BLOCK,
        biases=("transformer.ln_f", *_GPT2_BLOCK),
        transposed=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
        epsilon="layer_norm_epsilon",
        renamed={
            "hidden_size": "n_embd",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
        },
        fixed={
            "activation_function": ("gelu_new", *GELU),
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        rotary=False,
    ),
    Architecture(
        name="falcon",
        classes=("FalconForCausalLM",),
        model_type="falcon",
        outer=_FALCON_OUTER,
        block="transformer.h",
        modules=("ln_attn", "ln_mlp", *_FALCON_BLOCK),
        biases=("transformer.ln_f", "ln_attn", "ln_mlp"),
        rows={"attn_qkv": grouped_heads},
        epsilon="layer_norm_epsilon",
        renamed=_FALCON_NAMES,
        fixed=_FALCON_FIXED,
        when={"new_decoder_architecture": True, "num_ln_in_parallel_attn": 2},
        read_as={"new_decoder_architecture": True, "num_ln_in_parallel_attn": 2},
        marker="attn_norm_2.weight",
    ),
    Architecture(
        name="falcon",
        classes=("FalconForCausalLM",),
        model_type="falcon",
        outer=_FALCON_OUTER,
        block="transformer.h",
        modules=("input_layernorm", *_FALCON_BLOCK),
        biases=("transformer.ln_f", "input_layernorm"),
        rows={"attn_qkv": grouped_heads},
        epsilon="layer_norm_epsilon",
        renamed=_FALCON_NAMES,
        fixed=_FALCON_FIXED,
        read_as={"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    ),
    Architecture(
        name="bert",
        classes=("BertModel",),
        model_type="bert",
        outer=_BERT_OUTER,
        block="encoder.layer",
        modules=_BERT_BLOCK,
        biases=("embeddings.LayerNorm", *_BERT_BLOCK),
        outside={"pooler.dense.weight": "cls.weight", "pooler.dense.bias": "cls.bias"},
        epsilon="layer_norm_eps",
        keys={"type_vocab_size": "Tokenizer.TOKEN_TYPE_COUNT"},
        says={"Attention.CAUSAL": False},
        fixed={"hidden_act": GELU, "is_decoder": False, "add_cross_attention": False},
        rotary=False,
    ),
)
