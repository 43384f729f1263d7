"""The models that searches are measured on: those of accuracy.py, a wider one, and one of random weights."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.accuracy_cases import Subject, subjects
from goldstick.jobs.load.find_model import reference_directory

BUILD = Path(__file__).resolve().parents[1] / "build"


def searched_subjects() -> dict[str, Subject]:
    """The models by name.

    ``widened`` is there where ``python -m benchmarks.widened_model build/widened-model`` made it. ``random`` is made
    where it is missing: a Qwen3 of six blocks with a head of its own, for sizes, which do not ask what weights are.
    """
    known = subjects()
    title = "the reference model three times as wide, trained on"
    wide = dataclasses.replace(known["reference"], name="widened", title=title, directory=BUILD / "widened-model")
    title = "a Qwen3 of random weights"
    drawn = dataclasses.replace(known["reference"], name="random", title=title, directory=BUILD / "random-qwen3")
    if not (drawn.directory / "config.json").exists():
        write_random(drawn.directory)
    return known | {"widened": wide, "random": drawn}


def write_random(folder: Path) -> None:
    """A small Qwen3 with the reference model's tokenizer."""
    config = Qwen3Config(
        hidden_size=128, intermediate_size=384, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, vocab_size=3072, max_position_embeddings=512, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = Qwen3ForCausalLM(config)
    folder.mkdir(parents=True, exist_ok=True)
    for file in reference_directory().glob("*token*"):
        shutil.copy(file, folder)
    model.to(torch.bfloat16).save_pretrained(folder)
