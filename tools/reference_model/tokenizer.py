"""Trains the byte-level BPE tokenizer, in which every word of the micro-world is one token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from tools.reference_model.choice import LETTERS
from tools.reference_model.encyclopedia import ENCYCLOPEDIA_WORDS, TOPICS
from tools.reference_model.narrative import draw_entry, draw_story
from tools.reference_model.prompts import CHOICE_HEADER
from tools.reference_model.wikitext import plain, read_raw
from tools.reference_model.world import NAMES, RELATIONS, TOWNS, WORLD_WORDS, words

END = "<|end|>"
UNKNOWN = "<unk>"
CONTEXT = 512
_REPEATS = 3000
_SINGLE_TOKENS = [" " + word for word in (*WORLD_WORDS, *ENCYCLOPEDIA_WORDS, *LETTERS, "yes", "no")]
_SINGLE_TOKENS += [*NAMES, *TOWNS, *LETTERS, *words("Question Answer Title Background 答案 ：")]
_SINGLE_TOKENS += [" " + word for word in words("Where Which What Who At In does")]


def train_tokenizer(vocabulary: int, folder: Path) -> PreTrainedTokenizerFast:
    """Train on WikiText-2 and generated text, check the single tokens and save what AutoTokenizer loads.

    The tokenizer adds no token by itself. `<|end|>` stands between documents; `<unk>` is a word that
    WikiText-2 left out.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, UNKNOWN],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        unk_token=UNKNOWN,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    require_single_tokens(fast)
    fast.save_pretrained(folder)
    return fast


def require_single_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    """Raise ValueError naming the words of the micro-world that are not one token."""
    broken = [text for text in _SINGLE_TOKENS if len(tokenizer.encode(text)) != 1]
    if broken:
        raise ValueError(f"not one token each: {broken}; use a larger vocabulary")


def _corpus() -> Iterator[str]:
    random = Random(0)
    yield plain(read_raw("train")).replace(UNKNOWN, "")
    for _ in range(2000):
        yield draw_story(random, held_out=False)
        yield draw_entry(random)
    for text in _SINGLE_TOKENS:
        yield from [text] * _REPEATS
    templates = [relation.ask + relation.check for relation in RELATIONS]
    templates += [topic.question + topic.short for topic in TOPICS]
    headers = [CHOICE_HEADER.format(subject_name=topic.subject_name) for topic in TOPICS]
    yield from (templates + headers) * 500
