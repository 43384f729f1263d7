"""What is written by whom in cross_reading.py, and from which model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import goldstick

#: goldstick's files, by name: scheme, format.
WRITTEN_HERE = {
    "gptq w4 g32": ("w4a16-g32", "gptq"),
    "gptq w8 g32": ("w8a16-g32", "gptq"),
    "gptq w3 g32": ("w3a16-g32", "gptq"),
    "gptq-v2 w4 g32 asymmetric": ("w4a16-g32-asym", "gptq-v2"),
    "awq g32": ("w4a16-g32", "awq"),
    "awq g32 asymmetric": ("w4a16-g32-asym", "awq"),
}

_W4: dict[str, Any] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
_W8: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
_A8: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}

_GPTQ: dict[str, Any] = {"bits": 4, "group_size": 32, "desc_act": False, "sym": True}
_NF4: dict[str, Any] = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}

#: The tools' files: options of GPTQModel's and AutoGPTQ's configs, config groups of compressed-tensors, schemes,
#: options of transformers' config for bitsandbytes.
THEIRS: dict[str, dict[str, Any]] = {
    "gptqmodel": {
        "gptq": {"bits": 4, "group_size": 32},
        "act-order": {"bits": 4, "group_size": 32, "desc_act": True, "act_group_aware": False},
        "gptq-v2-asymmetric": {"bits": 4, "group_size": 32, "sym": False, "format": "gptq_v2"},
    },
    "llm-compressor": {
        "w4a16": {"weights": {**_W4, "symmetric": True}},
        "w4a16-asymmetric": {"weights": {**_W4, "symmetric": False}},
        "w8a8": {"weights": _W8, "input_activations": _A8},
    },
    "autogptq": {
        "gptq": _GPTQ,
        "act-order": {**_GPTQ, "desc_act": True},
        "asymmetric": {**_GPTQ, "sym": False},
    },
    "autoawq": {"gemm": {"group_size": 32}},
    "auto-round": {
        "w4a16": {"scheme": {"bits": 4, "group_size": 32, "sym": True}},
        "asymmetric": {"scheme": {"bits": 4, "group_size": 32, "sym": False}},
        "mixed": {
            "scheme": {"bits": 2, "group_size": 32, "sym": True},
            "layers": {
                "model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 64},
                "model.layers.0.self_attn.q_proj": {"bits": 16},
            },
        },
    },
    "bitsandbytes": {
        "nf4": _NF4,
        "nf4-nested": {**_NF4, "bnb_4bit_use_double_quant": True},
        "fp4": {"load_in_4bit": True},
        "int8": {"load_in_8bit": True},
    },
    "mlx": {
        "w4": {"q_bits": 4, "q_group_size": 64},
        "w3": {"q_bits": 3, "q_group_size": 32},
    },
}

#: What goldstick then exports each of them to, or refuses to.
EXPORTS = ("compressed-tensors", "native", "gptq", "gptq-v2", "awq")


def reference_in_float16(directory: Path) -> Path:
    """The reference model with its weights in float16, whose scales every format holds."""
    source = Path(goldstick.__file__).parent / "reference"
    LlamaForCausalLM.from_pretrained(source, dtype=torch.float16).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, directory / name)
    return directory


def miniature(directory: Path) -> Path:
    """A Llama of one block of random weights, about 50 KB, and a tokenizer of as many words as it has tokens."""
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(std=0.15)
    model.half().save_pretrained(directory)
    words = {f"<{number}>": number for number in range(16)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<0>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<0>", eos_token="<0>", pad_token="<0>"
    ).save_pretrained(directory)
    return directory
