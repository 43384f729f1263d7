"""Rows that name images or recordings: how they are told from rows of text, and what is wrong with some."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from goldstick.calibration.data.kinds import Kind, find_kind
from goldstick.calibration.data.media_rows import read_media_rows
from goldstick.errors import DataError
from tests.support.tiny_processors import write_image, write_rows, write_sound

ASKED = {"role": "user", "content": "what?"}


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"text": "a cat"}, Kind.TEXT),
        ({"messages": [ASKED]}, Kind.TEXT),
        ({"file_name": "notes.txt", "text": "a cat"}, Kind.TEXT),
        ({"images": [], "text": "a cat"}, Kind.TEXT),
        ({"audio": "", "text": "a cat"}, Kind.TEXT),
        ({"image": "a.png"}, Kind.MEDIA),
        ({"image": "", "file_name": "a.png"}, Kind.MEDIA),
        ({"file_name": "a.png"}, Kind.MEDIA),
        ({"audio": {"path": "a.wav"}}, Kind.MEDIA),
        ({"messages": [{"role": "user", "content": [{"type": "image", "url": "a.png"}]}]}, Kind.MEDIA),
    ],
)
def test_the_kind_of_rows_is_seen_in_their_fields(row: dict[str, Any], kind: Kind, tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    write_sound(tmp_path / "a.wav")
    assert find_kind(str(write_rows(tmp_path / "rows.jsonl", row))).kind is kind


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "compressed"])
def test_a_byte_order_mark_hides_no_kind(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    write_image(tmp_path / "ü.png")
    path = tmp_path / ("rows.jsonl" if pack is bytes else "rows.jsonl.gz")
    path.write_bytes(pack(b"\xef\xbb\xbf" + json.dumps({"image": "ü.png"}, ensure_ascii=False).encode()))
    assert find_kind(str(path)).kind is Kind.MEDIA


def test_the_place_of_a_row_of_a_table_is_its_first_line(tmp_path: Path) -> None:
    write_sound(tmp_path / "a.wav")
    table = tmp_path / "rows.csv"
    table.write_text('audio,text\n\na.wav,"one\ntwo\nthree"\n\na.wav,"four\nfive",more\na.wav\nb.wav,"six\nseven"\n')
    rows = read_media_rows(table, None)
    found = [next(rows), next(rows), next(rows)]
    assert [row.place for row in found] == [f"{table}, line {line}" for line in (3, 7, 9)]
    assert [row.text for row in found] == ["one\ntwo\nthree", "four\nfive", None]
    with pytest.raises(DataError, match=r"rows\.csv, line 10: there is no file 'b\.wav'"):
        next(rows)


def test_names_that_are_no_paths_are_text() -> None:
    for name in ("wikitext2", "reference", "owner/name"):
        assert find_kind(name).kind is Kind.TEXT


def test_hidden_files_of_a_folder_do_not_count(tmp_path: Path) -> None:
    write_image(tmp_path / "b" / "a.png")
    write_image(tmp_path / ".trash" / "b.png")
    (tmp_path / "notes.txt").write_text("mine")
    found = find_kind(str(tmp_path))
    assert [row.images for row in found.rows] == [(tmp_path / "b" / "a.png",)]
    assert found.other_files == 1


def test_images_that_no_part_stands_for_come_first(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    rows = write_rows(tmp_path / "rows.jsonl", {"images": ["a.png", "a.png"], "messages": [ASKED]})
    (row,) = read_media_rows(rows, None)
    assert row.images == (tmp_path / "a.png",) * 2
    image, text = {"type": "image"}, {"type": "text", "text": "what?"}
    assert row.messages == (("user", (image, image, text)),)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"image": "none.png"}, r"line 1: there is no file 'none\.png' \(paths are relative to"),
        ({"image": "https://a.b/c.png"}, "files are named by their paths, and this is 'https://a.b/c.png'"),
        ({"image": 3}, "files are named by their paths, and this is 'int'"),
        ({"image": "a.py"}, r"'a\.py' ends neither as images do"),
        ({"size": 3}, "names no image and no audio file, only size"),
        ({"image": "a.png", "text": 3}, "its text is int, not text"),
        ({"image": "a.png", "messages": "what?"}, "a conversation is a list of messages"),
        ({"image": "a.png", "messages": [{"role": "user", "content": 3}]}, "is a text or a list of parts"),
        ({"image": "a.png", "messages": [{"content": "what?"}]}, "a message of no role that is known"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video", "path": "a.mp4"}]}]},
            "a part of a message is of type text, image or audio, not 'video'",
        ),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_its_place(row: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    (tmp_path / "a.py").write_text("")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(row))
    with pytest.raises(DataError, match=complaint):
        list(read_media_rows(rows, None))


def test_a_table_without_rows_or_of_other_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("audio,text\n")
    with pytest.raises(DataError, match=r"rows\.csv: it holds no rows"):
        find_kind(str(path))
    path.write_bytes(b"audio\n\xff\xfe\n")
    with pytest.raises(DataError, match=r"rows\.csv: cannot be read as a table"):
        find_kind(str(path))
