"""``evaluate --json`` sums up; what every single item gave goes where it is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import run

MEASURE = ("evaluate", "reference", "--tasks", "text,boolq", "--limit", "4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a comparison of a model with itself leaves: its JSON, its items and its report."""
    found = tmp_path_factory.mktemp("found")
    arguments = ("--baseline", "reference", "--items", str(found / "items.jsonl"), "--report", str(found))
    result = run(*MEASURE, *arguments, "--json")
    assert result.exit_code == 0, result.output
    (found / "printed.json").write_text(result.stdout)
    return found


def test_no_list_of_items_is_printed(folder: Path) -> None:
    printed = json.loads((folder / "printed.json").read_text())
    for side in (printed, printed["baseline"], {"tasks": printed["divergence"]}):
        for task in side["tasks"].values():
            assert "items" not in task["details"]
            assert task["details"]["interval_95"]
    assert len((folder / "printed.json").read_text()) < 12_000


def test_what_the_items_show_is_printed(folder: Path) -> None:
    printed = json.loads((folder / "printed.json").read_text())
    rows = {(row["task"], row["metric"]): row for row in printed["comparison"]}
    assert set(rows) == {("text", "perplexity"), ("text", "bits_per_byte"), ("boolq", "accuracy")}
    accuracy = rows["boolq", "accuracy"]
    assert (accuracy["difference"], accuracy["shown"], accuracy["worse"]) == (0.0, False, False)
    assert accuracy["paired"]["items"] == 4
    assert accuracy["paired"]["p_value"] == 1.0


def test_a_line_for_each_item_gives_the_metrics(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
    printed = json.loads((folder / "printed.json").read_text())
    boolq = [line for line in lines if line["task"] == "boolq"]
    assert [line["item"] for line in boolq] == [0, 1, 2, 3] * 2  # of the model, then of its baseline
    assert {line["model"] for line in boolq} == {"reference"}
    accuracy = 100 * sum(line["value"] for line in boolq) / len(boolq)
    assert accuracy == printed["tasks"]["boolq"]["metrics"]["accuracy"]
    texts = [line for line in lines if line["metric"] == "perplexity"]
    assert texts and all(line["weight"] > 0 for line in texts)


def test_the_report_keeps_the_items_that_comparisons_need(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    assert len(report["tasks"]["boolq"]["details"]["items"]["accuracy"]["values"]) == 4


def test_a_file_that_exists_is_replaced_where_that_is_asked_for_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    items = tmp_path / "items.jsonl"
    items.write_text("a user's")
    with monkeypatch.context() as patch:
        patch.setattr("goldstick.api.evaluate", lambda *_, **__: pytest.fail("measured first"))
        refused = run(*MEASURE, "--items", str(items))
    assert refused.exit_code == 1
    assert "--overwrite" in refused.stderr
    assert items.read_text() == "a user's"
    assert run(*MEASURE, "--items", str(items), "--overwrite").exit_code == 0
    assert (
        len(items.read_text().splitlines()) == 4 + 2 * len((folder / "items.jsonl").read_text().splitlines()) // 4 - 4
    )
