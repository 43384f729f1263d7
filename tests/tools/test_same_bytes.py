"""tools/same_bytes: what it calls equal, and what it leaves out of a comparison."""

from __future__ import annotations

import json
from pathlib import Path

from tools.same_bytes.cases import CASES
from tools.same_bytes.comparison import differences
from tools.same_bytes.record import settle


def test_a_file_a_case_and_a_help_text_that_differ_are_named() -> None:
    before = {"checkpoints": {"a": {"x": "1", "y": "2"}, "b": {}}, "help": {"goldstick": "one\ntwo"}}
    after = {"checkpoints": {"a": {"x": "1", "y": "3"}, "c": {}}, "help": {"goldstick": "one\nthree"}}
    assert list(differences(before, before)) == []
    found = "\n".join(differences(before, after))
    assert "y differs in a" in found
    assert "b: only in the first record" in found
    assert "c: only in the second record" in found
    assert "-two" in found and "+three" in found
    assert "x differs" not in found


def test_times_are_left_out_of_a_report_and_results_are_not(tmp_path: Path) -> None:
    before, after = {"timing": {"prove": 1.5}, "layers": [{"seconds": 2.0, "error": 3.0}]}, {"layers": [{"error": 4.0}]}
    pages = []
    for told in (before, after):
        (tmp_path / "report.json").write_text(json.dumps(told))
        settle(tmp_path, page=False)
        pages.append(json.loads((tmp_path / "report.json").read_text()))
    assert pages == [{"timing": {"prove": 0.0}, "layers": [{"seconds": 0.0, "error": 3.0}]}, after]


def test_there_are_forty_cases_or_more_and_no_two_share_a_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 40
