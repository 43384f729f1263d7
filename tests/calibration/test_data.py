"""Calibration data: which text a name means, and exactly so many windows of exactly so many tokens."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from goldstick.calibration.data import KNOWN, TOKENS_PER_BATCH, CalibrationData, pack, read_texts
from goldstick.errors import DataError

TEXT = "one two three\nfour five\n"
ROWS = [{"text": "first", "part": "train"}, {"text": "second", "part": "test"}, {"text": "third", "part": "val"}]


def write(path: Path, text: str) -> str:
    """Write a file, compressed where its name says so; its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return str(path)


def lines(rows: list[dict[str, str]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def encode(text: str) -> list[int]:
    return list(text.encode())


def packed(text: str, *, samples: int, seq_len: int, seed: int = 0) -> CalibrationData:
    return pack([text], encode, dataset="mine", samples=samples, seq_len=seq_len, seed=seed)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.raw", "a.tokens.gz", "without_suffix", "a[1]*.txt"])
def test_a_text_file_is_one_text(name: str, tmp_path: Path) -> None:
    assert read_texts(write(tmp_path / name, TEXT), None) == [TEXT]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_each_row_is_a_text_and_parts_for_tests_are_left_out(name: str, tmp_path: Path) -> None:
    assert read_texts(write(tmp_path / name, lines(ROWS)), None) == ["first", "third"]
    every = [{"text": row["text"]} for row in ROWS]
    assert read_texts(write(tmp_path / "without" / name, lines(every)), None) == ["first", "second", "third"]


def test_a_row_without_text_names_file_and_line(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", lines([{"text": "x"}, {"prompt": "y"}]))
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: no field 'text', only prompt"):
        read_texts(file, None)


@pytest.mark.parametrize("name", ["missing.txt", "missing.jsonl", "missing.txt.gz", "no/such/folder.txt"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no calibration file '.*(missing|folder)"):
        read_texts(str(tmp_path / name), None)


def test_a_folder_is_no_calibration_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no calibration file"):
        read_texts(str(tmp_path), None)


def test_an_unknown_name_brings_what_can_be_given() -> None:
    with pytest.raises(DataError, match=r"'c4': give a \.txt or \.jsonl file, a hub name .* wikitext2, tinystories"):
        read_texts("c4", None)


def test_a_known_name_is_found_in_the_data_directory(tmp_path: Path) -> None:
    write(tmp_path / "wikitext2" / "wiki.train.tokens.gz", TEXT)
    write(tmp_path / "wikitext2" / "wiki.test.raw", "not this one")
    write(tmp_path / "tinystories" / "stories.jsonl.gz", lines(ROWS))
    write(tmp_path / "text" / "calibration.txt", "bundled")
    assert read_texts("wikitext2", tmp_path) == [TEXT]
    assert read_texts("tinystories", tmp_path) == ["first", "third"]
    assert read_texts("reference", tmp_path) == ["bundled"]


def test_a_folder_of_a_known_name_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "wikitext2" / "wiki.train.tokens", TEXT)
    monkeypatch.chdir(tmp_path)
    assert read_texts("wikitext2", Path()) == [TEXT]


def test_known_names_never_mean_the_text_of_an_evaluation() -> None:
    for dataset in KNOWN.values():
        assert not any("test" in file or "valid" in file for file in dataset.files)
        assert all(hub.split == "train" for hub in dataset.hub)


def test_a_known_name_without_its_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no text/calibration\.txt \(or \.gz\) under --data-dir"):
        read_texts("reference", tmp_path)


def test_windows_are_cut_from_the_stream_one_after_the_other() -> None:
    data = pack(["abc", "defg", "hij"], encode, dataset="mine", samples=3, seq_len=3, seed=0)
    assert data.ids.tolist() == [encode("abc"), encode("def"), encode("ghi")]
    assert data.ids.dtype == torch.int64


def test_a_text_that_is_too_short_says_by_how_much() -> None:
    with pytest.raises(DataError, match=r"mine gives 6 windows of 4 tokens and the recipe asks for 7: use --samples 6"):
        packed(TEXT, samples=7, seq_len=4)
    with pytest.raises(DataError, match=r"gives 0 windows of 100 tokens .* a smaller --seq-len, or a longer text"):
        packed(TEXT, samples=1, seq_len=100)


def test_the_seed_alone_decides_which_windows_are_drawn() -> None:
    text = "".join(chr(97 + number % 26) * 2 for number in range(400))
    first = packed(text, samples=5, seq_len=8, seed=1).ids
    torch.manual_seed(99)
    assert torch.equal(packed(text, samples=5, seq_len=8, seed=1).ids, first)
    assert not torch.equal(packed(text, samples=5, seq_len=8, seed=2).ids, first)


def test_a_window_never_comes_twice() -> None:
    text = "".join(chr(200 + number) for number in range(50))
    ids = pack([text], lambda text: [ord(c) for c in text], dataset="mine", samples=10, seq_len=5, seed=3).ids
    assert len(ids.flatten().unique()) == 50


@pytest.mark.parametrize(("samples", "seq_len"), [(7, 16), (3, TOKENS_PER_BATCH), (2, 2 * TOKENS_PER_BATCH)])
def test_batches_hold_every_token_once_and_no_more_than_fit(samples: int, seq_len: int) -> None:
    ids = torch.arange(samples * seq_len).view(samples, seq_len)
    batches = CalibrationData(ids=ids, dataset="mine", available=samples).batches()
    assert torch.equal(torch.cat([batch["input_ids"] for batch in batches]), ids)
    assert all(batch["input_ids"].numel() <= max(TOKENS_PER_BATCH, seq_len) for batch in batches)


def test_the_audit_counts_what_was_used_and_what_there_was() -> None:
    assert packed("abcabcabcabcab", samples=2, seq_len=3).audit() == {
        "dataset": "mine",
        "samples": 2,
        "seq_len": 3,
        "tokens": 6,
        "windows_available": 4,
        "distinct_tokens": 3,
    }
