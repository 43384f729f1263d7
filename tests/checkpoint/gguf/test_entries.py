"""Files as they are laid out: the bytes of the first four architectures, and what a layout refuses."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config, Qwen3Config

from goldstick.checkpoint.entries import Entry, Specs
from goldstick.checkpoint.gguf.card import card_metadata
from goldstick.checkpoint.gguf.entries import gguf_layout, write_gguf
from goldstick.core.progress import quiet
from goldstick.errors import FormatError
from goldstick.formats.gguf import GGUF_NAME
from tests.support.tiny_models import GROUPED

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CONFIGS: dict[str, Any] = {
    "LlamaForCausalLM": LlamaConfig(**GROUPED, rope_parameters=LLAMA3),
    "MistralForCausalLM": MistralConfig(**GROUPED, sliding_window=None),
    "Qwen2ForCausalLM": Qwen2Config(**GROUPED),
    "Qwen3ForCausalLM": Qwen3Config(**GROUPED, head_dim=16),
}
#: sha256 of the files that were written when these were all there was.
BYTES = {
    "LlamaForCausalLM": "a2dae9a58647c39af484a7c53b1996e4523ca9a7c53680dd8c2ed845f3d809fb",
    "MistralForCausalLM": "ce31eb2580153aba009178113b867a5190ea1e9ab95799a7c4ec5e3cb31afbf3",
    "Qwen2ForCausalLM": "0703a3861e4a37643d175e0ce7380b0779b5cbb5f28e579314ae197a25697cee",
    "Qwen3ForCausalLM": "71227436cf4111e610b8985617b3ae9954619e04ef03f2177b47baa3c2292bd4",
}


def outputs_of(cls: str) -> Specs:
    """The tensors of a model of one block, half of them in blocks, without a head."""
    block = {"self_attn.q_proj": 64, "self_attn.k_proj": 32, "mlp.up_proj": 128}
    outputs: Specs = {
        f"model.layers.0.{name}.weight_q8_0": (torch.Size([rows, 2 * 34]), torch.uint8) for name, rows in block.items()
    }
    outputs["model.layers.0.self_attn.v_proj.weight"] = (torch.Size([32, 64]), torch.bfloat16)
    outputs["model.layers.0.input_layernorm.weight"] = (torch.Size([64]), torch.bfloat16)
    outputs["model.embed_tokens.weight"] = (torch.Size([128, 64]), torch.bfloat16)
    if cls == "Qwen2ForCausalLM":
        outputs["model.layers.0.self_attn.q_proj.bias"] = (torch.Size([64]), torch.bfloat16)
    if cls == "Qwen3ForCausalLM":
        outputs["model.layers.0.self_attn.q_norm.weight"] = (torch.Size([16]), torch.bfloat16)
    return outputs


def counted(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(shape.numel()) % 251).reshape(shape).to(dtype)


@pytest.mark.parametrize("cls", CONFIGS)
def test_files_of_the_first_four_architectures_are_the_same_bytes(cls: str, tmp_path: Path) -> None:
    outputs = outputs_of(cls)
    config = {**CONFIGS[cls].to_dict(), "architectures": [cls]}
    entries = [
        Entry(name=name, outputs={name: spec}, produce=partial(lambda name, spec: {name: counted(*spec)}, name, spec))
        for name, spec in outputs.items()
    ]
    hashes = write_gguf(tmp_path, entries, gguf_layout(outputs, config, tmp_path, "tiny"), quiet)
    assert hashes == {GGUF_NAME: hashlib.sha256((tmp_path / GGUF_NAME).read_bytes()).hexdigest()}
    assert hashes[GGUF_NAME] == BYTES[cls]


MIXTRAL = {
    **MixtralConfig(**GROUPED, num_local_experts=4).to_dict(),
    "architectures": ["MixtralForCausalLM"],
}
EXPERT = "model.layers.0.block_sparse_moe.experts.{}.w1.weight"


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        ([EXPERT.format(0), EXPERT.format(2)], r"stacked in blk\.0\.ffn_gate_exps\.weight are numbered \[0, 2\]"),
        ([EXPERT.format(0), EXPERT.format(1) + "_q8_0"], r"hold all experts in one tensor.*BF16 and .* as Q8_0"),
    ],
)
def test_experts_that_are_no_stack_are_refused(names: list[str], complaint: str, tmp_path: Path) -> None:
    blocks, floats = (torch.Size([128, 68]), torch.uint8), (torch.Size([128, 64]), torch.bfloat16)
    outputs = {name: blocks if name.endswith("_q8_0") else floats for name in names}
    with pytest.raises(FormatError, match=complaint):
        gguf_layout(outputs, MIXTRAL, tmp_path, "tiny")


def test_a_config_of_no_known_class_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    with pytest.raises(FormatError, match=r"files of LlamaForCausalLM, .*, BertModel, and not of MambaForCausalLM"):
        gguf_layout({}, {**MIXTRAL, "architectures": ["MambaForCausalLM"]}, tmp_path, "tiny")


def test_a_card_says_licence_languages_and_base_model() -> None:
    card = {"license": "other", "license_name": "harbour", "language": ["en", "fi"], "base_model": "island/boat-1b"}
    assert card_metadata(card) == {
        "general.license": "other",
        "general.license.name": "harbour",
        "general.languages": ["en", "fi"],
        "general.base_model.count": 1,
        "general.base_model.0.name": "boat-1b",
        "general.base_model.0.organization": "island",
    }
    assert card_metadata({"language": "en"}) == {"general.languages": ["en"]}
    assert card_metadata({"base_model": "boat"})["general.base_model.0.name"] == "boat"
    assert card_metadata({}) == {}
