"""A tokenizer for the tiny models: every token is one character."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.support.tiny_models import VOCABULARY

#: Writes each message as [role]content.
CHAT_TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"


def write_tokenizer(directory: Path, *, chat_template: str | None = None, too_many: int = 0) -> None:
    """Write a tokenizer whose tokens are single characters; there are fewer of them than the models have rows.

    Args:
        directory: Where it is written.
        chat_template: Its chat template, if it has one.
        too_many: Adds tokens ``<id>`` with ids up to and including this many beyond the models' rows.
    """
    letters = [letter for letter in sorted(pre_tokenizers.ByteLevel.alphabet()) if letter.isascii() or letter in "ĠĊ"]
    vocabulary = {letter: number for number, letter in enumerate(["<unk>", *letters])}
    assert len(vocabulary) <= VOCABULARY
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if too_many:
        tokenizer.add_tokens([AddedToken(f"<{number}>") for number in range(len(vocabulary), VOCABULARY + too_many)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", chat_template=chat_template)
    fast.save_pretrained(directory)


def write_words(file: Path, count: int = 800) -> None:
    """A text of so many words that the tokenizer knows, drawn by chance, the same each time."""
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "bird"]
    chosen = torch.randint(len(words), (count,), generator=torch.Generator().manual_seed(0)).tolist()
    file.write_text(" ".join(words[number] for number in chosen))
