"""Tokenizers in GGUF files: entries, and what text becomes when transformers reads them back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from goldstick.checkpoint.gguf.tokenizer import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    tokenizer_metadata,
)
from goldstick.checkpoint.gguf.writer import GgufWriter
from goldstick.errors import FormatError
from tests.support.gguf_tokenizers import ROWS, SPLITTINGS, TEXT, byte_level, save, sentencepiece, unigram, wordpiece

Edit = Callable[[dict[str, Any]], None]


def read_back(folder: Path, metadata: dict[str, Any]) -> Any:
    """The tokenizer that transformers makes of a GGUF file with these entries."""
    specs = {"output_norm.weight": ("F32", torch.Size([16]))}
    with GgufWriter(folder / "model.gguf", "llama", metadata, specs) as writer:
        writer.write("output_norm.weight", torch.zeros(4))
    return AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf", local_files_only=True)


@pytest.mark.parametrize("name", SPLITTINGS)
def test_a_byte_level_tokenizer_is_written_with_the_name_of_its_splitting(name: str, tmp_path: Path) -> None:
    tokenizer = byte_level(name)
    save(tokenizer, tmp_path, eos_token="<|end|>", chat_template="{{ messages }}")
    found = tokenizer_metadata(tmp_path, ROWS)
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert (found["tokenizer.ggml.model"], found["tokenizer.ggml.pre"]) == ("gpt2", name)
    assert found["tokenizer.ggml.merges"][1] == "th e"
    assert len(tokens) == len(types) == ROWS
    assert [types[tokens.index(token)] for token in ("<|end|>", "<|user|>", "<think>", "Ġthe")] == [
        CONTROL,
        CONTROL,
        USER_DEFINED,
        NORMAL,
    ]
    assert (tokens[-1], types[-1]) == (f"[PAD{ROWS - 1}]", UNUSED)
    assert found["tokenizer.ggml.eos_token_id"] == 0
    assert found["tokenizer.chat_template"] == "{{ messages }}"
    assert found["tokenizer.ggml.add_bos_token"] is False


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_transformers_reads_the_same_tokenizer_back(name: str, tmp_path: Path) -> None:
    tokenizer = byte_level(name)
    save(tokenizer, tmp_path, eos_token="<|end|>")
    metadata = tokenizer_metadata(tmp_path, len(tokenizer.get_vocab()))
    (tmp_path / "out").mkdir()
    again = read_back(tmp_path / "out", metadata)
    assert again(TEXT, add_special_tokens=False)["input_ids"] == tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert again.eos_token == "<|end|>"


@pytest.mark.parametrize("home", ["special_tokens_map.json", "config.json"])
def test_special_tokens_are_found_where_other_readers_find_them(home: str, tmp_path: Path) -> None:
    save(byte_level(), tmp_path, bos_token="<|user|>", eos_token="<|end|>", pad_token="<|end|>")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    names = {key: settings.pop(key) for key in ("bos_token", "eos_token", "pad_token")}
    numbers = {"bos_token_id": 265, "eos_token_id": [0, 265], "pad_token_id": 0}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / home).write_text(json.dumps(names if home.startswith("special") else numbers))
    found = tokenizer_metadata(tmp_path, ROWS)
    assert found["tokenizer.ggml.tokens"][265] == "<|user|>"
    assert [found[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", "padding")] == [265, 0, 0]
    if home.startswith("special"):
        theirs = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
        assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (265, 0, 0)


def test_a_sentencepiece_tokenizer_is_written_with_scores_that_rank_its_merges(tmp_path: Path) -> None:
    tokenizer = sentencepiece()
    save(tokenizer, tmp_path, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    found = tokenizer_metadata(tmp_path, len(tokenizer.get_vocab()))
    kinds = dict(zip(found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"], strict=True))
    scores = dict(zip(found["tokenizer.ggml.tokens"], found["tokenizer.ggml.scores"], strict=True))
    assert found["tokenizer.ggml.model"] == "llama"
    assert [kinds[token] for token in ("<unk>", "<s>", "<0x41>", "▁the")] == [UNKNOWN, CONTROL, BYTE, NORMAL]
    assert scores["▁t"] > scores["he"] > scores["▁the"] > scores["out"] > scores["a"]
    assert found["tokenizer.ggml.add_bos_token"] is True
    assert found["tokenizer.ggml.add_eos_token"] is False
    assert found["tokenizer.ggml.add_space_prefix"] is True
    assert [found[f"tokenizer.ggml.{name}_token_id"] for name in ("unknown", "bos", "eos")] == [0, 1, 2]


@pytest.mark.parametrize("lowercase", [True, False])
def test_pieces_that_begin_a_word_are_marked_and_not_those_that_go_on(lowercase: bool, tmp_path: Path) -> None:
    save(wordpiece(lowercase), tmp_path, cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", mask_token="[MASK]")
    found = tokenizer_metadata(tmp_path, ROWS)
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert tokens[:6] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁a"]
    assert types[:6] == [CONTROL, UNKNOWN, CONTROL, CONTROL, CONTROL, NORMAL]
    assert "ello" in tokens
    assert "▁once" in tokens
    assert found["tokenizer.ggml.model"] == "bert"
    assert found["tokenizer.ggml.normalizer.lowercase"] is lowercase
    names = ("bos", "cls", "eos", "seperator", "unknown", "mask")
    assert [found[f"tokenizer.ggml.{name}_token_id"] for name in names] == [2, 2, 3, 3, 1, 4]


def test_a_unigram_tokenizer_is_written_with_its_scores(tmp_path: Path) -> None:
    save(unigram(), tmp_path, eos_token="</s>", unk_token="<unk>", pad_token="<pad>")
    found = tokenizer_metadata(tmp_path, ROWS)
    scores = dict(zip(found["tokenizer.ggml.tokens"], found["tokenizer.ggml.scores"], strict=True))
    assert (scores["▁the"], scores["on"], scores["[PAD399]"]) == (-1.5, -2.5, -10000.0)
    assert found["tokenizer.ggml.model"] == "t5"
    assert found["tokenizer.ggml.add_space_prefix"] is True
    assert found["tokenizer.ggml.remove_extra_whitespaces"] is True
    assert [found[f"tokenizer.ggml.add_{name}_token"] for name in ("bos", "eos")] == [False, True]
    assert [found[f"tokenizer.ggml.{name}_token_id"] for name in ("unknown", "eos", "padding")] == [2, 1, 0]


def test_a_checkpoint_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    assert tokenizer_metadata(tmp_path, ROWS) == {"tokenizer.ggml.model": "none"}
    (tmp_path / "tokenizer.model").write_bytes(b"\0")
    with pytest.raises(FormatError, match=r"has a tokenizer and no tokenizer\.json.*without a tokenizer"):
        tokenizer_metadata(tmp_path, ROWS)


def word_level(data: dict[str, Any]) -> None:
    data["model"]["type"] = "WordLevel"


def other_split(data: dict[str, Any]) -> None:
    data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\w+|\s+"


def lower_case(data: dict[str, Any]) -> None:
    data["normalizer"] = {"type": "Lowercase"}


def no_merges(data: dict[str, Any]) -> None:
    data["model"]["merges"] = []


@pytest.mark.parametrize(
    ("edit", "rows", "complaint"),
    [
        (word_level, ROWS, "it is a WordLevel model"),
        (other_split, ROWS, "splits text in a way that goldstick has no name for"),
        (lower_case, ROWS, "its normalizer changes text"),
        (no_merges, ROWS, "it has no merges"),
        (dict, 5, "the model's embedding 5 rows"),
    ],
)
def test_a_tokenizer_that_llama_cpp_would_run_in_another_way_is_refused(
    edit: Edit, rows: int, complaint: str, tmp_path: Path
) -> None:
    save(byte_level("qwen2"), tmp_path)
    file = tmp_path / "tokenizer.json"
    data = json.loads(file.read_text())
    edit(data)
    file.write_text(json.dumps(data))
    with pytest.raises(FormatError, match=f"{complaint}.*Remove the tokenizer files"):
        tokenizer_metadata(tmp_path, rows)


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.update(model=5),
        lambda data: data.update(added_tokens=[[1]]),
        lambda data: data.update(added_tokens=[{"id": "a", "content": "b"}]),
        lambda data: data.update(pre_tokenizer={"type": "Split", "pattern": 5}),
        lambda data: data["model"].update(vocab=[1]),
        lambda data: data["model"].update(merges=[5]),
        lambda data: data["model"].update(merges=[["a", ["b"]]]),
        lambda data: data["model"].update(byte_fallback=True, merges=[["a", [1]]]),
        lambda data: data.update(post_processor={"type": "TemplateProcessing", "single": [5]}),
    ],
)
def test_a_tokenizer_that_is_laid_out_otherwise_is_refused(edit: Edit, tmp_path: Path) -> None:
    save(byte_level("qwen2"), tmp_path)
    file = tmp_path / "tokenizer.json"
    data = json.loads(file.read_text())
    edit(data)
    file.write_text(json.dumps(data))
    with pytest.raises(FormatError, match="GGUF cannot hold this tokenizer"):
        tokenizer_metadata(tmp_path, ROWS)


def test_settings_that_are_laid_out_otherwise_are_refused(tmp_path: Path) -> None:
    save(byte_level("qwen2"), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": [1]}))
    with pytest.raises(FormatError, match="not laid out as tokenizers are"):
        tokenizer_metadata(tmp_path, ROWS)
