"""Kept results are JSON that every reader takes: no NaN, no infinity."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.consumers.results import keep

RESULTS = sorted((Path(__file__).resolve().parents[2] / "benchmarks" / "results").glob("*.json"))


def _refuse(word: str) -> None:
    raise ValueError(word)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_results_hold_no_word_that_json_lacks(path: Path) -> None:
    assert json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)


def test_consumers_results_with_nan_are_not_written(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text("{}")
    with pytest.raises(ValueError, match="JSON compliant"):
        keep(tmp_path / "kept.json", {"mean": float("nan")})
    assert (tmp_path / "kept.json").read_text() == "{}"
