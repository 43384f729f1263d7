"""Make a Llama of random weights for timing: ``python random_model.py DIRECTORY DTYPE``.

160 million parameters (12 blocks, hidden size 768, vocabulary 32,000) with the tokenizer of goldstick's
reference model, whose token ids are below 3,072. Accuracy means nothing on it; time and memory do.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import goldstick

CONFIG = {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "max_position_embeddings": 2048,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def main() -> None:
    """Write the checkpoint."""
    directory = Path(sys.argv[1])
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**CONFIG)).to(getattr(torch, sys.argv[2])).save_pretrained(directory)
    reference = Path(goldstick.__file__).parent / "reference"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(reference / name, directory / name)


if __name__ == "__main__":
    main()
