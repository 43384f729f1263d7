"""Tokenizers of the kinds that GGUF files hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from goldstick.checkpoint.gguf.tokenizer import (
    SPLITS,
)

TEXT = "Hello there, the 12 boats  go out\n\nat 7 o'clock — don't they?"


PATTERNS = {name: pattern for pattern, name in SPLITS.items()}


ROWS = 400


def byte_level(name: str = "gpt-2") -> Tokenizer:
    """A byte-level BPE tokenizer that merges a few letters, split as llama.cpp calls it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("o", "u"), ("ou", "t"), ("l", "l"), ("e", "ll"), ("1", "2")]
    words = ["<|end|>", *letters, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name in ("gpt-2", "smollm"))
    first: Any = None
    if name == "smollm":
        first = pre_tokenizers.Digits(individual_digits=True)
    elif name != "gpt-2":
        first = pre_tokenizers.Split(Regex(PATTERNS[name]), behavior="isolated")
    tokenizer.pre_tokenizer = last if first is None else pre_tokenizers.Sequence([first, last])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|user|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


def sentencepiece() -> Tokenizer:
    """A BPE tokenizer with byte fallback as those of Llama 2 are."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("o", "u"), ("ou", "t")]
    words += [*"▁abcdefghijklmnopqrstuvwxyz,.?'", *("".join(pair) for pair in merges)]
    vocabulary = {word: number for number, word in enumerate(words)}
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, **settings: Any) -> None:
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings).save_pretrained(folder)
