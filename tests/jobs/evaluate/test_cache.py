"""Results are measured once, and again as soon as anything that made them has changed."""

from __future__ import annotations

import json
import math
import pwd
from collections.abc import Sequence
from pathlib import Path

import pytest

from goldstick.evaluation import DataSource, Evaluation, Task, TaskResult
from goldstick.jobs.evaluate.cache import cache_directory, evaluate_with_cache


class Runs:
    """Measures nothing and remembers what it was asked to measure."""

    def __init__(self, folder: Path) -> None:
        self.model, self.data, self.cache = folder / "model", folder / "data", folder / "cache"
        self.asked: list[str] = []
        self.model.mkdir()
        (self.model / "config.json").write_text("{}")
        (self.model / "model.safetensors").write_bytes(b"weights")
        (self.data / "text").mkdir(parents=True)
        (self.data / "text/heldout.txt").write_text("some text")
        (self.data / "boolq").mkdir()
        (self.data / "boolq/val.jsonl").write_text(json.dumps({"passage": "p", "question": "q", "label": 1}))

    def measure(self, tasks: Sequence[Task]) -> Evaluation:
        names = [task.name for task in tasks]
        self.asked += names
        metrics = {"perplexity": 2.5, "bits_per_byte": math.inf}
        result = TaskResult(protocol="p", n=3, metrics=metrics, details={"interval_95": [1.0, 2.0]})
        return Evaluation(results=dict.fromkeys(names, result), tokenizer="t")

    def __call__(self, *tasks: str, limit: int | None = None) -> Evaluation:
        data = DataSource(self.data)
        return evaluate_with_cache(self.model, tasks, data, limit, self.cache, self.measure)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_a_result_is_measured_once_and_is_the_same_from_the_disk(runs: Runs) -> None:
    first, second = runs("text", "boolq"), runs("boolq", "text")
    assert runs.asked == ["text", "boolq"]
    assert list(second.results) == ["boolq", "text"]
    assert first.to_dict()["tasks"]["text"] == second.to_dict()["tasks"]["text"]
    assert second.results["text"].metrics["bits_per_byte"] == math.inf


def test_only_what_is_missing_is_measured(runs: Runs) -> None:
    runs("text")
    runs("text", "boolq")
    assert runs.asked == ["text", "boolq"]


def test_another_model_limit_text_or_task_is_measured_anew(runs: Runs) -> None:
    runs("text")
    runs("text", limit=2)
    (runs.data / "text/heldout.txt").write_text("other text")
    runs("text")
    (runs.model / "model.safetensors").write_bytes(b"other weights")
    runs("text")
    (runs.model / "goldstick_kv_cache.json").write_text("{}")
    runs("text")
    assert runs.asked == ["text"] * 5


def test_a_report_beside_the_model_changes_nothing(runs: Runs) -> None:
    runs("text")
    (runs.model / "report.json").write_text("{}")
    runs("text")
    assert runs.asked == ["text"]


def test_a_damaged_entry_is_measured_anew(runs: Runs) -> None:
    runs("text")
    (entry,) = runs.cache.rglob("*.json")
    for damage in ("", "[]", '{"protocol": "p"}', entry.read_text().replace('"n": ', '"n": -')):
        entry.write_text(damage)
        runs("text")
    assert runs.asked == ["text"] * 5


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(runs: Runs) -> None:
    runs.cache.write_text("a file where the directory should be")
    runs("text")
    runs("text")
    assert runs.asked == ["text", "text"]


def test_the_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOLDSTICK_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.delenv("GOLDSTICK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_directory() == Path("/caches/goldstick")


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_entry(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    for name in ("GOLDSTICK_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_directory() is None
    monkeypatch.setenv("HOME", str(tmp_path / "nonexistent"))
    assert cache_directory() is None
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "goldstick"


CODE = """
from dataclasses import dataclass
from goldstick.evaluation import LanguageModel

@dataclass(frozen=True, kw_only=True)
class Mine:
    models = (LanguageModel,)
    name: str = "mine"
    protocol: str = "mine@1"
    def load(self, data):
        return ROWS
    def run(self, model, data, limit, progress):
        return 1
"""


def test_a_task_of_ones_own_is_measured_anew_where_its_code_or_its_file_has_changed(runs: Runs, tmp_path: Path) -> None:
    code, rows = tmp_path / "mine.py", tmp_path / "mine.jsonl"
    text, choice = f"text:{rows}", str(code)
    for source, content in [("[1]", "a"), ("[1]", "a"), ("[1]", "b"), ("[2]", "b"), ("[2]  # run differs", "b")]:
        code.write_text(CODE.replace("ROWS", source))
        rows.write_text(json.dumps({"text": content}))
        runs(text, choice)
    assert runs.asked == [text, "mine", text, "mine", "mine"]


@pytest.mark.parametrize("rows", ["object()", "[lambda: 1]", "iter([1])"])
def test_a_task_whose_data_cannot_be_told_apart_is_measured_every_time(runs: Runs, tmp_path: Path, rows: str) -> None:
    code = tmp_path / "mine.py"
    code.write_text(CODE.replace("ROWS", rows))
    runs(str(code))
    runs(str(code))
    assert runs.asked == ["mine", "mine"]


@pytest.mark.parametrize("rows", ["np.zeros(5000)", "torch.zeros(5000)", "[{'a': (b'0', {0.5}, None, 'x' * 9000)}]"])
def test_arrays_and_collections_are_told_apart_by_every_number(runs: Runs, tmp_path: Path, rows: str) -> None:
    code, place = tmp_path / "mine.py", tmp_path / "place"
    source = f"import numpy as np, pathlib, torch\nPLACE = pathlib.Path({str(place)!r})\nFOUND = {rows}\n"
    source += "def rows():\n    if PLACE.exists():\n        FOUND[int(PLACE.read_text())] = 1e-12\n    return FOUND\n"
    code.write_text(source + CODE.replace("ROWS", "rows()"))
    runs(str(code))
    runs(str(code))
    place.write_text("0" if rows.startswith("[") else "2500")
    runs(str(code))
    assert runs.asked == ["mine", "mine"]
