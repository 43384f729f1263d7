"""Checkpoints of a model of one block, as small as they come, in every storage format."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers
from transformers import LlamaConfig, LlamaForCausalLM

import goldstick
from goldstick.jobs.save import finish
from tests.support.proofs import prove_here

#: Storage format → the scheme that its small checkpoint has.
SCHEMES = {
    "compressed-tensors": "w4a16-g32",
    "native": "w4a16-g32-asym",
    "gptq": "w4a16-g32",
    "awq": "w4a16-g32-asym",
    "auto-round": "w4a16-g32",
}
WEIGHTS = "model.safetensors"
SMALL = LlamaConfig(
    vocab_size=48,
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=32,
    bos_token_id=1,
    eos_token_id=2,
)


def small_float(directory: Path) -> Path:
    """The float checkpoint."""
    torch.manual_seed(0)
    LlamaForCausalLM(SMALL).to(torch.bfloat16).save_pretrained(directory)
    return directory


def small_tokenizer(directory: Path) -> None:
    """A tokenizer with fewer tokens than the model has rows, in the way of sentencepiece."""
    words = ["<unk>", "<s>", "</s>", *"▁abcdefghijklmnopqrstuvwxyz", "▁t", "he", "▁the"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(directory / "tokenizer.json"))


def small_checkpoints(folder: Path) -> dict[str, Path]:
    """``float``, ``gguf`` and every storage format of :data:`SCHEMES` → its directory in ``folder``."""
    made = {"float": small_float(folder / "float")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", prove_here)
        for form, scheme in SCHEMES.items():
            recipe = {"stages": [{"rtn": {"scheme": scheme}}], "export": {"format": form}}
            goldstick.quantize(made["float"], recipe, output=folder / form, proof="tensors")
            made[form] = folder / form
        small_tokenizer(copy_of(folder / "compressed-tensors", folder / "with-tokenizer"))
        goldstick.export(folder / "with-tokenizer", "gguf", output=folder / "gguf", proof="tensors")
        made["gguf"] = folder / "gguf"
    return made


def copy_of(directory: Path, target: Path) -> Path:
    """A copy to be spoiled."""
    return Path(shutil.copytree(directory, target))
