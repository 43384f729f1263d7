"""What a report refuses, and that what is written is what is read."""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from goldstick.errors import DataError, OutputError, UsageError
from goldstick.report import LayerRecord, Report, SizeSummary
from goldstick.report.page import check_page, write_page
from tests.support.report_records import record

LAYERS = (
    record("layers.0.proj.weight"),
    record(
        "layers.0.zero.weight",
        shape=(8, 32),
        bytes_before=512,
        bytes_after=144,
        weight_sqnr_db=math.inf,
        max_abs_error=0.0,
    ),
    LayerRecord(
        name="norm.weight",
        shape=(32,),
        dtype="float32",
        bytes_before=128,
        bytes_after=128,
        reason="one-dimensional",
    ),
)


def make_report(**changes: Any) -> Report:
    fields: dict[str, Any] = {
        "goldstick_version": "0.1.0",
        "model": "tiny",
        "recipe": {"stages": [{"gptq": {"damp": 0.01}}]},
        "format": "native",
        "size": SizeSummary.of(LAYERS),
        "layers": LAYERS,
        "structure": {"blocks": 1},
        "evaluation": {
            "before": {"tasks": {}},
            "after": {"tasks": {"text": {"metrics": {"perplexity": math.inf}}}},
        },
        "proof": {"reread": True},
        "warnings": ("one fold was undone: the loss did not fall",),
        "timing": {"sweep": 1.5},
        "environment": {"torch": "2.13.0"},
    }
    return Report(**{**fields, **changes})


def test_a_report_read_back_equals_the_one_written(tmp_path: Path) -> None:
    report = make_report()
    assert report.write(tmp_path) == tmp_path / "report.json"
    assert Report.read(tmp_path) == report
    assert Report.from_json(report.to_json()) == report


def test_the_file_is_strict_json_even_with_infinities() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    data = json.loads(make_report().to_json(), parse_constant=refuse)
    assert data["layers"][1]["weight_sqnr_db"] == "Infinity"


def test_equal_reports_are_equal_bytes() -> None:
    assert make_report().to_json() == make_report().to_json()


def test_sizes_add_up_and_bits_count_scales_and_zeros() -> None:
    size = SizeSummary.of(LAYERS)
    assert (size.bytes_before, size.bytes_after) == (4736, 1424)
    assert size.bits_per_weight == pytest.approx(8 * 1296 / (64 * 32 + 8 * 32))
    assert SizeSummary.of(LAYERS[2:]).bits_per_weight is None


@pytest.mark.parametrize("side", ["bytes_before", "bytes_after"])
def test_a_byte_that_is_not_accounted_for_is_refused(side: str) -> None:
    size = SizeSummary.of(LAYERS)
    with pytest.raises(UsageError, match=rf"{side} is \d+ but its 3 records add up"):
        make_report(size=replace(size, **{side: getattr(size, side) + 1}))
    with pytest.raises(UsageError, match=r"norm\.weight twice"):
        make_report(layers=(*LAYERS, LAYERS[2]), size=SizeSummary.of((*LAYERS, LAYERS[2])))


def test_a_record_says_what_was_done_or_why_nothing_was() -> None:
    with pytest.raises(UsageError, match=r"norm\.weight: the record must say"):
        replace(LAYERS[2], reason=None)
    with pytest.raises(UsageError, match="negative"):
        replace(LAYERS[2], bytes_after=-1)


@pytest.mark.parametrize("value", [{1: "x"}, {"a": {1, 2}}, {"a": [Path("x")]}])
def test_what_is_not_plain_data_is_named(value: Any) -> None:
    with pytest.raises(UsageError, match=r"report\.proof"):
        make_report(proof=value).to_json()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:-20], "not JSON"),
        (lambda text: text.replace('"report_version": 1', '"report_version": 9'), "version 1"),
        (lambda text: text.replace('"format"', '"former"'), "lacks a field or has a wrong one"),
        (lambda text: text.replace('"bytes_before": 128', '"bytes_before": 127'), "add up"),
        (lambda text: "[]", "version 1"),
        (lambda text: text.replace('"format": "', '"format": "\\ud800'), "half of a character"),
        (lambda text: text.replace('"bytes_before": 128', '"bytes_before": ' + "9" * 5000), "not JSON that goldstick"),
        (lambda text: "[" * 100_000, "not JSON that goldstick reads: maximum recursion"),
    ],
)
def test_a_damaged_report_is_a_data_error_that_names_the_file(tmp_path: Path, change: Any, said: str) -> None:
    (tmp_path / "report.json").write_text(change(make_report().to_json()))
    with pytest.raises(DataError, match=f"report.json: .*{said}"):
        Report.read(tmp_path)


def test_a_missing_report_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        Report.read(tmp_path)


def test_a_pipe_in_the_place_of_a_report_or_its_page_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.json")
    for read in (Report.read, write_page):
        with pytest.raises(DataError, match=r"report.json: cannot be read \(it is no plain file\)"):
            read(tmp_path)
    os.mkfifo(tmp_path / "report.html")
    with pytest.raises(OutputError, match=r"report.html is no plain file"):
        check_page(tmp_path, overwrite=False)


def test_a_write_that_fails_leaves_the_old_report_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_report(model="old").write(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        make_report(model="new").write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert Report.read(tmp_path).model == "old"


def test_a_directory_that_is_not_there_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        make_report().write(tmp_path / "nowhere")


def test_the_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    written = make_report().write(tmp_path)
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)
