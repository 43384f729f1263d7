"""Tokenizers of the kinds that GGUF files hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from goldstick.checkpoint.gguf.tokenizer import SPLIT_SEQUENCES, SPLITS

TEXT = "Hello there, the 12 boats  go out\n\nat 7 o'clock — don't they?"


PATTERNS = {name: pattern for pattern, name in SPLITS.items()}
#: Every splitting that llama.cpp has a name for and goldstick knows.
SPLITTINGS = ("gpt-2", "smollm", *PATTERNS, *SPLIT_SEQUENCES.values(), "falcon")


ROWS = 400


def byte_level(name: str = "gpt-2") -> Tokenizer:
    """A byte-level BPE tokenizer that merges a few letters, split as llama.cpp calls it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("o", "u"), ("ou", "t"), ("l", "l"), ("e", "ll"), ("1", "2")]
    words = ["<|end|>", *letters, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    words_too = name in ("gpt-2", "smollm", "falcon")
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words_too)]
    sequences = {known: patterns for patterns, known in SPLIT_SEQUENCES.items()}
    if name == "smollm":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    elif name == "falcon":
        steps.insert(0, pre_tokenizers.Punctuation(behavior="contiguous"))
        steps.append(pre_tokenizers.Digits(individual_digits=False))
        steps.append(pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated"))
    elif name != "gpt-2":
        patterns = sequences.get(name) or (PATTERNS[name],)
        steps[:0] = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    tokenizer.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
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


def wordpiece(lowercase: bool = True) -> Tokenizer:
    """A tokenizer as BERT's are."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyzABCéΩ.,'?-", "東", "京"]
    words += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789é"]
    words += ["once", "upon", "the", "##ime", "1", "12", "boat", "##s", "don", "H", "##ello"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


def unigram() -> Tokenizer:
    """A unigram tokenizer as T5's are."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(letter, -6.0 - number / 64) for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz.,'?0123456789")]
    pieces += [("▁the", -1.5), ("▁boat", -3.25), ("s", -3.5), ("▁on", -3.0), ("ce", -3.75), ("▁up", -3.0), ("on", -2.5)]
    tokenizer = Tokenizer(models.Unigram(list({piece: (piece, score) for piece, score in pieces}.values()), unk_id=2))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, **settings: Any) -> None:
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings).save_pretrained(folder)
