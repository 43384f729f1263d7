"""The models of the consumers' table: the bundled one, and one of random numbers for each architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers import PreTrainedModel

from goldstick.jobs.load.find_model import reference_directory
from tools.consumers import BUNDLED

#: Widths that every runtime's kernels take: whole groups of 128, heads of 64.
_SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
_GROUPED: dict[str, Any] = {**_SIZES, "num_key_value_heads": 2}
_GEMMA: dict[str, Any] = {**_GROUPED, "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 128}
_LAYERS = ["sliding_attention", "full_attention"]
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
}

#: Name → class and config. Each has layers that others have not.
MODELS: dict[str, tuple[type[PreTrainedModel], Callable[[], Any]]] = {
    "llama": (hf.LlamaForCausalLM, lambda: hf.LlamaConfig(**_GROUPED)),
    "mistral": (hf.MistralForCausalLM, lambda: hf.MistralConfig(**_GROUPED, sliding_window=None)),
    "qwen2": (hf.Qwen2ForCausalLM, lambda: hf.Qwen2Config(**_GROUPED)),
    "qwen3": (hf.Qwen3ForCausalLM, lambda: hf.Qwen3Config(**_GROUPED, head_dim=64)),
    "phi3": (hf.Phi3ForCausalLM, lambda: hf.Phi3Config(**_GROUPED)),
    "granite": (hf.GraniteForCausalLM, lambda: hf.GraniteConfig(**_GROUPED)),
    "olmo2": (hf.Olmo2ForCausalLM, lambda: hf.Olmo2Config(**_GROUPED)),
    "starcoder2": (hf.Starcoder2ForCausalLM, lambda: hf.Starcoder2Config(**_GROUPED)),
    "gemma2": (hf.Gemma2ForCausalLM, lambda: hf.Gemma2Config(**_GEMMA, layer_types=_LAYERS)),
    "gemma3": (hf.Gemma3ForCausalLM, lambda: hf.Gemma3TextConfig(**_GEMMA, layer_types=_LAYERS)),
    "mixtral": (
        hf.MixtralForCausalLM,
        lambda: hf.MixtralConfig(**_GROUPED, num_local_experts=4, num_experts_per_tok=2),
    ),
    "qwen3_moe": (hf.Qwen3MoeForCausalLM, lambda: hf.Qwen3MoeConfig(**_GROUPED, **_EXPERTS, head_dim=64)),
    "gpt2": (
        hf.GPT2LMHeadModel,
        lambda: hf.GPT2Config(
            vocab_size=512, n_embd=256, n_layer=2, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=1
        ),
    ),
}
#: Ends of the names of matrices whose products are added to the residual.
_ADDED = ("o_proj", "down_proj", "c_proj", "w2", "dense")


def written(name: str, directory: Path) -> Path:
    """The float model of a name in bfloat16; random numbers are drawn so that blocks add little to the residual."""
    if name == BUNDLED:
        return reference_directory()
    kind, config = MODELS[name]
    torch.manual_seed(0)
    model = kind(config())
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.ndim < 2:
                continue
            small = path.removesuffix(".weight").endswith(_ADDED)
            parameter.normal_(std=0.02 if small else 0.06)
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.weight.normal_(std=0.3)
    model.to(torch.bfloat16).save_pretrained(directory)
    return directory


def tokens(name: str, *, rows: int = 2) -> list[list[int]]:
    """Rows of 48 token ids: two of text for the bundled model, drawn for the others."""
    if name == BUNDLED:
        tokenizer = hf.AutoTokenizer.from_pretrained(reference_directory())
        text = (reference_directory() / "data" / "text" / "heldout.txt").read_text(encoding="utf-8")
        ids = tokenizer(text[:4000], add_special_tokens=False)["input_ids"]
        return [ids[:48], ids[200:248]]
    return torch.randint(2, 512, (rows, 48), generator=torch.Generator().manual_seed(1)).tolist()
