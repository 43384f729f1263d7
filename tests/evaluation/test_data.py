"""Where data are found, and what is said where they are not. No test here reaches for a network."""

from __future__ import annotations

import gzip
import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goldstick.errors import DataError, UsageError
from goldstick.evaluation.data import Dataset, DataSource, evenly_spaced
from goldstick.evaluation.hub import HubDataset, load_from_hub

SET = Dataset(
    name="facts",
    files=("facts/val.jsonl", "facts/val*-v2.jsonl"),
    hub=(HubDataset(path="a/facts", split="val"),),
)
LOCAL_ONLY = Dataset(name="text", files=("text/heldout.txt",))


def put(directory: Path, name: str, content: bytes) -> Path:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def fake_datasets(monkeypatch: pytest.MonkeyPatch, builder: Any, offline: bool = False) -> None:
    """Put a module in the place of `datasets`."""
    module = SimpleNamespace(load_dataset_builder=builder, config=SimpleNamespace(HF_HUB_OFFLINE=offline))
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("goldstick.evaluation.hub.hub_answers", lambda: True)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def test_a_plain_file_comes_before_a_compressed_one_and_both_before_the_hub(tmp_path: Path) -> None:
    put(tmp_path, "facts/val.jsonl.gz", b'{"text": "packed"}\n\n{"text": "two"}\n')
    assert [row["text"] for row in DataSource(tmp_path).rows(SET)] == ["packed", "two"]
    put(tmp_path, "facts/val.jsonl", b'{"text": "plain"}\n')
    assert [row["text"] for row in DataSource(tmp_path).rows(SET)] == ["plain"]


def test_a_pattern_finds_a_file_of_another_name(tmp_path: Path) -> None:
    path = put(tmp_path, "facts/val_part-v2.jsonl.gz", b'{"text": "x"}')
    assert DataSource(tmp_path).find(SET) == path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text": "fine"}\n{"text": \n', r"val\.jsonl, line 2: not JSON"),
        (b'{"text": "fine"}\n[1]\n', r"line 2: a row must be a JSON object, not list"),
        (b'{"text": "fine"}\n{"txt": "x"}\n', r"line 2: no field 'text', only txt"),
        (b"\n", r"holds no rows"),
        (b"\xff\xfe", r"not UTF-8"),
        (b'{"text": "fine"}\n{"text": "\\ud83d"}\n', r"line 2: '\\ud83d' is half of a character"),
        (b'{"text": "fine"}\n{"a": {"\\uDC00": 1}}\n', r"line 2: '\\udc00' is half of a character"),
        (b'{"text": ' + b"9" * 5000 + b"}", r"line 1: not JSON that is read here \(Exceeds the limit"),
        (b'{"text": ' + b"[" * 100_000 + b"}", r"line 1: not JSON that is read here \(maximum recursion"),
        (b'{"text": "x"}\n' + b'{"a":' * 100_000, r"line 2: not JSON that is read here \(maximum recursion"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path: Path, content: bytes, said: str) -> None:
    put(tmp_path, "facts/val.jsonl", content)
    with pytest.raises(DataError, match=said):
        DataSource(tmp_path).rows(SET, ["text"])


@pytest.mark.parametrize("name", ["facts/val.jsonl", "facts/val.jsonl.gz"])
def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path, name: str) -> None:
    put(tmp_path, name, b'\xef\xbb\xbf{"text": "plain \\ud83d\\ude00"}\n{"text": "next"}\n')
    assert [row["text"] for row in DataSource(tmp_path).rows(SET)] == ["plain \U0001f600", "next"]
    assert DataSource(tmp_path).lines(SET)[0].startswith("{")
    assert DataSource(None).document(put(tmp_path, "a.json", b'\xef\xbb\xbf{"a": 1}')) == {"a": 1}


def test_a_damaged_compressed_file_is_named(tmp_path: Path) -> None:
    path = put(tmp_path, "facts/val.jsonl.gz", b'{"text": "x"}\n' * 1000)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match=r"val\.jsonl\.gz: cannot be read"):
        DataSource(tmp_path).rows(SET)


def test_missing_local_data_name_the_file_that_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"text: .* no text/heldout\.txt \(or \.gz\) under --data-dir"):
        DataSource(tmp_path).lines(LOCAL_ONLY)
    with pytest.raises(DataError, match=r"give --data-dir DIR with DIR/text/heldout\.txt"):
        DataSource().lines(LOCAL_ONLY)
    with pytest.raises(UsageError, match="does not exist"):
        DataSource(tmp_path / "nowhere")


def test_a_hub_that_does_not_answer_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    fake_datasets(monkeypatch, lambda path, configuration: release.wait(30))
    begun = time.monotonic()
    with pytest.raises(DataError) as caught:
        DataSource(hub_timeout=0.1).rows(SET)
    release.set()
    assert time.monotonic() - begun < 5
    line = str(caught.value)
    assert "\n" not in line
    for part in ("facts", "a/facts", "no answer within 0.1 s", "HF_HUB_OFFLINE is not set", "--data-dir DIR"):
        assert part in line


def test_an_offline_switch_set_late_is_honoured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(path: str, configuration: str | None) -> None:
        raise AssertionError("the hub was asked")

    fake_datasets(monkeypatch, never)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="HF_HUB_OFFLINE=1 forbids asking it"):
        DataSource().rows(SET)


def test_the_hub_s_own_complaint_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, configuration: str | None) -> None:
        raise ConnectionError("Couldn't reach\n'a/facts'")

    fake_datasets(monkeypatch, refuse)
    with pytest.raises(DataError, match=r"ConnectionError: Couldn't reach 'a/facts'; HF_HUB_OFFLINE is not set"):
        DataSource().rows(SET)


def test_rows_from_the_hub_are_read_and_know_their_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[bool] = []

    def build(path: str, configuration: str | None) -> SimpleNamespace:
        return SimpleNamespace(
            download_and_prepare=lambda: prepared.append(True),
            as_dataset=lambda split: [{"text": f"{path} {configuration} {split}"}],
        )

    fake_datasets(monkeypatch, build)
    hub = HubDataset(path="a/b", configuration="law", split="val", configuration_field="subject")
    assert load_from_hub(hub) == [{"subject": "law", "text": "a/b law val"}]
    assert prepared == [True]
    assert DataSource().lines(SET) == ["a/facts None val"]


def test_a_folder_that_is_called_like_a_data_set_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_datasets(monkeypatch, lambda path, configuration: pytest.fail("the folder was read"))
    (tmp_path / "a" / "facts").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="current directory holds a folder of that name"):
        DataSource().rows(SET)


def test_the_real_library_offline_fails_at_once_with_one_line() -> None:
    begun = time.monotonic()
    with pytest.raises(DataError, match=r"facts: a/facts .*--data-dir DIR with DIR/facts/val\.jsonl"):
        DataSource().rows(SET)
    assert time.monotonic() - begun < 9


def test_a_limit_takes_rows_evenly_spaced() -> None:
    assert evenly_spaced(list(range(10)), 5) == [0, 2, 4, 6, 8]
    assert evenly_spaced(list(range(3)), 7) == [0, 1, 2]
    assert evenly_spaced(list(range(3)), None) == [0, 1, 2]


def test_each_file_is_read_once(tmp_path: Path) -> None:
    path = put(tmp_path, "facts/val.jsonl", json.dumps({"text": "x"}).encode())
    source = DataSource(tmp_path)
    first = source.rows(SET)
    path.unlink()
    assert source.rows(SET) == first
