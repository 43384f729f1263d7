"""Which text a name means, which part of a row counts, and what is said of files that cannot be read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from goldstick.calibration.data import parquet as parquet_reader
from goldstick.calibration.data.sources import KNOWN, Document, read_documents
from goldstick.errors import DataError

TEXT = "one two three\nfour five\n"
ROWS = [{"text": "first", "part": "train"}, {"text": "second", "part": "test"}, {"text": "third", "part": "val"}]
MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
SHARE_GPT = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}]


def write(path: Path, text: str) -> str:
    """Write a file, compressed where its name says so; its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return str(path)


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """Write rows as the file's name says; its name."""
    if path.suffix != ".parquet":
        return write(path, lines(rows))
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, **options)
    return str(path)


def contents(dataset: str, data_dir: Path | None = None, text_field: str | None = None) -> list[Any]:
    return [document.content for document in read_documents(dataset, data_dir, text_field)]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.raw", "a.tokens.gz", "without_suffix", "a[1]*.txt"])
def test_a_text_file_is_one_text(name: str, tmp_path: Path) -> None:
    assert contents(write(tmp_path / name, TEXT)) == [TEXT]


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.csv.gz", "a.bogus"])
def test_a_file_of_any_other_ending_is_refused(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, TEXT)
    with pytest.raises(DataError, match=r"calibration files end in \.txt, \.raw, \.tokens .*\.jsonl or \.parquet"):
        read_documents(path, None)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_each_row_is_a_text_and_parts_for_tests_are_left_out(name: str, tmp_path: Path) -> None:
    assert contents(write_rows(tmp_path / name, ROWS)) == ["first", "third"]
    every = [{"text": row["text"]} for row in ROWS]
    (tmp_path / "without").mkdir()
    assert contents(write_rows(tmp_path / "without" / name, every)) == ["first", "second", "third"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_both_ways_to_write_a_conversation_are_one(name: str, tmp_path: Path) -> None:
    expected = [tuple(MESSAGES)]
    assert contents(write_rows(tmp_path / f"1{name}", [{"messages": MESSAGES, "id": 1}])) == expected
    assert contents(write_rows(tmp_path / f"2{name}", [{"conversations": SHARE_GPT, "id": 1}])) == expected
    assert contents(write_rows(tmp_path / f"3{name}", [{"conversations": MESSAGES, "id": 1}])) == expected


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_row_with_several_fields_gives_the_text_unless_another_field_is_named(name: str, tmp_path: Path) -> None:
    file = write_rows(tmp_path / name, [{"text": "written", "messages": MESSAGES, "story": "told"}])
    assert contents(file) == ["written"]
    assert contents(file, text_field="story") == ["told"]
    assert contents(file, text_field="messages") == [tuple(MESSAGES)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_field_that_is_null_gives_way_to_one_that_is_not(name: str, tmp_path: Path) -> None:
    rows = [{"text": None, "messages": MESSAGES}, {"text": "words", "messages": None}]
    assert contents(write_rows(tmp_path / name, rows)) == [tuple(MESSAGES), "words"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_blank_rows_are_kept_for_counting(name: str, tmp_path: Path) -> None:
    rows = [{"text": "words"}, {"text": " \n"}, {"text": None}, {"text": ""}]
    documents = read_documents(write_rows(tmp_path / name, rows), None)
    assert [document.blank for document in documents] == [False, True, True, True]


def test_a_conversation_without_words_is_blank_and_one_that_calls_a_tool_is_not() -> None:
    silent = ({"role": "user", "content": " "},)
    calling = ({"role": "assistant", "content": "", "tool_calls": [{"name": "look"}]},)
    assert Document(place="", content=()).blank
    assert Document(place="", content=silent).blank
    assert not Document(place="", content=calling).blank
    assert not Document(place="", content=tuple(MESSAGES)).blank


def test_row_numbers_of_parquet_run_on_through_all_row_groups(tmp_path: Path) -> None:
    rows = [{"text": f"row {number}"} for number in range(1, 8)]
    file = write_rows(tmp_path / "a.parquet", rows, row_group_size=3)
    documents = read_documents(file, None)
    assert [document.content for document in documents] == [row["text"] for row in rows]
    assert [document.place for document in documents] == [f"{file}, row {number}" for number in range(1, 8)]


def test_only_the_columns_that_count_are_read_from_parquet(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "a.parquet", [{"text": "x", "part": "train", "embedding": [1.0] * 9}])
    assert list(parquet_reader.read_parquet(Path(file), ("part", "text", "messages"))) == [
        (1, {"part": "train", "text": "x"})
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "y", "id": 3}, r"line 2: no field 'text', 'messages' or 'conversations', only prompt, id"),
        ({}, r"line 2: no field .* only nothing"),
        ({"text": 5}, r"line 2: its field 'text' is int, not text"),
        ({"text": ["a"]}, r"line 2: its field 'text' is list, not text"),
        ({"messages": "hello"}, r"line 2: a conversation is a list of messages, not str"),
        ({"messages": {"role": "user"}}, r"line 2: a conversation is a list of messages, not dict"),
        ({"messages": ["hello"]}, r"line 2, message 1: a message has fields role and content, and this is str"),
        ({"messages": [*MESSAGES, {"content": "x"}]}, r"line 2, message 3: no role, only content"),
        ({"messages": [{"role": "user"}]}, r"line 2, message 1: its content is missing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            r"line 2, message 1: its content is list instead of text",
        ),
        (
            {"conversations": [{"from": "narrator", "value": "x"}]},
            r"line 2, message 1: nobody knows the role of 'narrator'",
        ),
        (
            {"conversations": [{"from": ["human"], "value": "x"}]},
            r"line 2, message 1: nobody knows the role of \['human'\]",
        ),
        ({"conversations": [{"from": "human"}]}, r"line 2, message 1: its content is missing"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_with_what_is_wrong(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", lines([{"text": "x"}, row]))
    with pytest.raises(DataError, match=rf"a\.jsonl, {said}"):
        contents(file)


def test_blank_lines_do_not_shift_the_line_that_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"text": "x"}\n\n\n{"prompt": "y"}\n')
    with pytest.raises(DataError, match=r"line 4: no field"):
        contents(file)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_named_field_that_is_not_there_is_missed(name: str, tmp_path: Path) -> None:
    file = write_rows(tmp_path / name, [{"text": "x", "id": "y"}])
    with pytest.raises(DataError, match=r"a\.(jsonl|parquet).*: no (field|column) 'story'.*, only text, id"):
        contents(file, text_field="story")


def test_a_plain_text_has_no_field(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.txt is one text: it has no rows, and so no field 'story'"):
        contents(write(tmp_path / "a.txt", TEXT), text_field="story")


def test_a_parquet_file_that_is_none_or_damaged_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read as parquet"):
        contents(write(tmp_path / "a.parquet", TEXT))
    whole = Path(write_rows(tmp_path / "whole.parquet", [{"text": "words " * 99}] * 50)).read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"b\.parquet: cannot be read as parquet"):
        contents(str(tmp_path / "b.parquet"))
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet: it holds no rows"):
        contents(str(tmp_path / "c.parquet"))
    parquet.write_table(pyarrow.table({"picture": ["x"], "label": [3]}), tmp_path / "d.parquet")
    with pytest.raises(
        DataError, match=r"d\.parquet: no column 'text', 'messages', 'conversations' .*only picture, label"
    ):
        contents(str(tmp_path / "d.parquet"))


def test_rows_that_are_all_for_tests_are_no_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no rows \(where rows have a part, none is of train or val\)"):
        contents(write(tmp_path / "a.jsonl", lines([{"text": "x", "part": "test"}])))


@pytest.mark.parametrize("name", ["missing.txt", "missing.jsonl", "missing.parquet", "missing.txt.gz", "no/folder.txt"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no calibration file '.*(missing|folder)"):
        contents(str(tmp_path / name))


def test_a_folder_is_no_calibration_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder, and text is read here"):
        contents(str(tmp_path))


def test_an_unknown_name_brings_what_can_be_given() -> None:
    with pytest.raises(DataError, match=r"'c4': give a \.txt, \.jsonl or \.parquet file, a hub name .* wikitext2, tin"):
        contents("c4")


def test_a_known_name_is_found_in_the_data_directory(tmp_path: Path) -> None:
    write(tmp_path / "wikitext2" / "wiki.train.tokens.gz", TEXT)
    write(tmp_path / "wikitext2" / "wiki.test.raw", "not this one")
    write(tmp_path / "tinystories" / "stories.jsonl.gz", lines(ROWS))
    write(tmp_path / "text" / "calibration.txt", "bundled")
    assert contents("wikitext2", tmp_path) == [TEXT]
    assert contents("tinystories", tmp_path) == ["first", "third"]
    assert contents("reference", tmp_path) == ["bundled"]


def test_a_folder_of_a_known_name_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "wikitext2" / "wiki.train.tokens", TEXT)
    monkeypatch.chdir(tmp_path)
    assert contents("wikitext2", Path()) == [TEXT]


def test_known_names_never_mean_the_text_of_an_evaluation() -> None:
    for dataset in KNOWN.values():
        assert not any("test" in file or "valid" in file for file in dataset.files)
        assert all(hub.split == "train" for hub in dataset.hub)


def test_a_known_name_without_its_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no text/calibration\.txt \(or \.gz\) under --data-dir"):
        contents("reference", tmp_path)


def test_a_hub_name_gives_the_rows_of_its_train_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[SimpleNamespace] = []

    def hub(dataset: Any, timeout: float) -> list[dict[str, Any]]:
        asked.append(dataset)
        return [{"text": "", "n": 1}, {"messages": MESSAGES}]

    monkeypatch.setattr("goldstick.evaluation.data.load_from_hub", hub)
    assert contents("owner/chats") == ["", tuple(MESSAGES)]
    assert (asked[0].path, asked[0].split) == ("owner/chats", "train")
    with pytest.raises(DataError, match=r"owner/chats, row 2: no field 'text', only messages"):
        contents("owner/chats", text_field="text")


def test_a_hub_that_does_not_answer_leaves_a_local_file() -> None:
    with pytest.raises(DataError, match=r"owner/chats: .*HF_HUB_OFFLINE.*; give the path of a local file instead"):
        contents("owner/chats")
