"""Tokenizer files made of the entries of a GGUF file: the same token ids, or the reason why there are none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from goldstick.checkpoint.gguf.file import GgufFile, read_gguf
from goldstick.checkpoint.gguf.tokenizer import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, tokenizer_metadata
from goldstick.checkpoint.gguf.tokenizer_files import tokenizer_files
from goldstick.checkpoint.gguf.writer import GgufWriter
from goldstick.errors import FormatError
from goldstick.jobs.load.find_model import reference_directory
from tests.support.gguf_tokenizers import ROWS, SPLITTINGS, byte_level, save, sentencepiece, unigram, wordpiece

TEXTS = (
    "Once upon a time, there was a little girl who liked the sea.",
    "  two spaces,\n\n\ta tab and trailing ones   ",
    "naïve café — 東京 🙂, Ωmega and e\u0301",
    "12 boats, 1234567 fish and 3.14159",
    "don't they'll I'VE",
    "<s>begin</s> <|end|><|user|>the <think>out</think> <unk> <0x41> [PAD399] ▁the",
    "",
    " ",
)
Metadata = dict[str, Any]


def file_with(folder: Path, metadata: Mapping[str, Any]) -> GgufFile:
    """A GGUF file with these entries and hardly any tensors."""
    specs = {"output_norm.weight": ("F32", torch.Size([16]))}
    with GgufWriter(folder / "model.gguf", "llama", metadata, specs) as writer:
        writer.write("output_norm.weight", torch.zeros(4))
    return read_gguf(folder / "model.gguf")


def made_of(folder: Path, metadata: Mapping[str, Any]) -> Any:
    """The tokenizer of the files that goldstick makes of these entries."""
    files = tokenizer_files(file_with(folder, metadata))
    (folder / "made").mkdir()
    for name, text in files.items():
        (folder / "made" / name).write_text(text, encoding="utf-8")
    return AutoTokenizer.from_pretrained(folder / "made", local_files_only=True)


def assert_equal_tokenizers(made: Any, original: Any) -> None:
    for text in TEXTS:
        for special in (True, False):
            ids = original(text, add_special_tokens=special)["input_ids"]
            assert made(text, add_special_tokens=special)["input_ids"] == ids, text
            assert made.decode(ids) == original.decode(ids)


@pytest.mark.parametrize("name", SPLITTINGS)
def test_a_byte_level_tokenizer_comes_back_from_a_file(name: str, tmp_path: Path) -> None:
    save(byte_level(name), tmp_path, eos_token="<|end|>", chat_template="{{ messages }}")
    original = AutoTokenizer.from_pretrained(tmp_path)
    made = made_of(tmp_path, tokenizer_metadata(tmp_path, ROWS) | {"tokenizer.ggml.add_bos_token": False})
    # Files of the name qwen2 are of models whose tokenizers compose letters first.
    if name == "qwen2":
        assert made("e\u0301")["input_ids"] == made("é")["input_ids"]
        original.backend_tokenizer.normalizer = made.backend_tokenizer.normalizer
    assert_equal_tokenizers(made, original)
    assert (made.eos_token, made.chat_template, len(made)) == ("<|end|>", "{{ messages }}", len(original))


def test_a_sentencepiece_tokenizer_comes_back_from_a_file(tmp_path: Path) -> None:
    save(sentencepiece(), tmp_path, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    original = AutoTokenizer.from_pretrained(tmp_path)
    made = made_of(tmp_path, tokenizer_metadata(tmp_path, ROWS))
    assert_equal_tokenizers(made, original)
    assert (made.bos_token, made.eos_token, made.unk_token) == ("<s>", "</s>", "<unk>")


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_wordpiece_tokenizer_comes_back_from_a_file(lowercase: bool, tmp_path: Path) -> None:
    save(wordpiece(lowercase), tmp_path, cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", pad_token="[PAD]")
    original = AutoTokenizer.from_pretrained(tmp_path)
    made = made_of(tmp_path, tokenizer_metadata(tmp_path, ROWS))
    assert_equal_tokenizers(made, original)
    assert (made.unk_token, made.pad_token) == ("[UNK]", "[PAD]")


def test_a_unigram_tokenizer_comes_back_from_a_file(tmp_path: Path) -> None:
    save(unigram(), tmp_path, eos_token="</s>", unk_token="<unk>", pad_token="<pad>")
    original = AutoTokenizer.from_pretrained(tmp_path)
    made = made_of(tmp_path, tokenizer_metadata(tmp_path, ROWS))
    assert_equal_tokenizers(made, original)
    assert (made.unk_token, made.eos_token) == ("<unk>", "</s>")


def test_the_tokenizers_of_trained_models_come_back(shared_data: Path, tmp_path: Path) -> None:
    text = (reference_directory() / "README.md").read_text(encoding="utf-8")
    for directory, rows in ((reference_directory(), 3072), (shared_data / "stories260k", 512)):
        folder = tmp_path / directory.name
        folder.mkdir()
        original = AutoTokenizer.from_pretrained(directory)
        made = made_of(folder, tokenizer_metadata(directory, rows))
        assert_equal_tokenizers(made, original)
        assert made(text)["input_ids"] == original(text)["input_ids"]


def slow_merging(text: str, scores: Mapping[str, float]) -> list[str]:
    """What llama.cpp does for sentencepiece models: of neighbours that make a piece, the best score, then the first."""
    pieces = list(text)
    while True:
        pairs = [(scores[a + b], -place) for place, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not pairs:
            return pieces
        place = -max(pairs)[1]
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]


def test_pieces_are_merged_by_their_scores(tmp_path: Path) -> None:
    draw = random.Random(0)
    pieces = sorted({"".join(draw.choices("ab▁c", k=draw.randint(2, 5))) for _ in range(60)})
    words = ["<unk>", *"abc▁", *pieces]
    scores = dict(zip(words[1:], draw.sample([-float(number) for number in range(500)], len(words) - 1), strict=True))
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": [0.0, *scores.values()],
        "tokenizer.ggml.token_type": [UNKNOWN, *[NORMAL] * len(scores)],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }
    made = made_of(tmp_path, metadata)
    for _ in range(300):
        text = "".join(draw.choices("abc▁", k=draw.randint(1, 30)))
        assert made.tokenize(text) == slow_merging(text, scores), text


def small(**changes: Any) -> Metadata:
    """Entries of a byte-level tokenizer with a token of every kind."""
    tokens = ["a", "b", "ab", "<end>", "<think>", "[PAD5]", "[PAD6]"]
    found = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [NORMAL, NORMAL, NORMAL, CONTROL, USER_DEFINED, UNUSED, NORMAL],
        "merges": ["a b"],
        "bos_token_id": 3,
        "eos_token_id": 3,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (found | changes).items() if value is not None}


def test_tokens_keep_their_kind_and_unused_rows_are_none(tmp_path: Path) -> None:
    made = made_of(tmp_path, small(add_bos_token=True, add_eos_token=True))
    assert made("ab<think>ab")["input_ids"] == [3, 2, 4, 2, 3]
    assert made.decode([3, 2, 4], skip_special_tokens=True).replace(" ", "") == "ab<think>"
    assert sorted(made.get_vocab().values()) == [0, 1, 2, 3, 4, 6]
    assert "pad_token" not in made.special_tokens_map


def test_a_whole_word_that_is_a_token_needs_no_merges_where_llama_cpp_needs_none(tmp_path: Path) -> None:
    for name, ids in (("llama3", [3, 2]), ("gpt-2", [0, 1])):
        folder = tmp_path / name
        folder.mkdir()
        made = made_of(folder, small(pre=name, merges=["b a"], tokens=["a", "b", "ab", "<end>", "<think>", "ba", "c"]))
        assert made("ab")["input_ids"] == ids, name


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": "none"}, "it holds no tokenizer"),
        ({"model": None}, "it holds no tokenizer"),
        ({"model": "rwkv"}, "it holds one of the kind 'rwkv', and goldstick reads gpt2, llama, t5 and bert"),
        ({"pre": "default"}, "splits text as 'default', and goldstick knows .*gpt-2.*tekken"),
        ({"pre": None}, "splits text as None"),
        ({"merges": ["a b", "b b"]}, "its merge 'b b' is not of two tokens that make a third"),
        ({"merges": None}, r"tokenizer\.ggml\.merges is no list of type str"),
        ({"tokens": ["a", "a"]}, "two of its tokens are the same"),
        ({"token_type": [1]}, r"it has 7 tokens, and 1 values in tokenizer\.ggml\.token_type"),
        ({"bos_token_id": 7}, "its bos token has the number 7, and there are 7 tokens"),
        ({"model": "llama"}, r"tokenizer\.ggml\.scores is no list of type float"),
        (
            {"model": "llama", "tokens": ["a" * 600], "token_type": [NORMAL], "scores": [0.0]}
            | {"bos_token_id": 0, "eos_token_id": 0},
            "a token of 600 letters",
        ),
    ],
)
def test_entries_that_give_no_tokenizer_are_refused_with_the_reason(
    changes: Metadata, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=rf"There is no tokenizer for model\.gguf: .*{complaint}.*Put the tokenizer"):
        tokenizer_files(file_with(tmp_path, small(**changes)))


def test_more_tokens_than_rows_are_refused(tmp_path: Path) -> None:
    specs = {"token_embd.weight": ("F32", torch.Size([6, 128]))}
    with GgufWriter(tmp_path / "model.gguf", "llama", small(), specs) as writer:
        writer.write("token_embd.weight", torch.zeros(6, 32))
    with pytest.raises(FormatError, match="it has 7 tokens, and the model's embedding 6 rows"):
        tokenizer_files(read_gguf(tmp_path / "model.gguf"))
