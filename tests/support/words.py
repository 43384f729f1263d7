"""A text of few words, and how it is cut into samples."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "small", "bird", "singing", "of", "rain"]


def goldstick_ids(source: Path, text: Path, samples: int = 12, seq_len: int = 64) -> list[list[int]]:
    """The windows that the recipe draws, found here by the tokenizer alone."""
    stream = PreTrainedTokenizerFast.from_pretrained(source)(text.read_text())["input_ids"]
    windows = [stream[start : start + seq_len] for start in range(0, len(stream) - seq_len + 1, seq_len)]
    chosen = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))[:samples]
    return [windows[number] for number in sorted(chosen.tolist())]
