"""Several processes measure, search and convert together, and find what one finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import goldstick
from tests.support.crash_points import contents
from tests.support.rank_jobs import write_sources
from tests.support.ranks import finish, start, work

MEASURES = ("evaluate", "sensitivity", "attribute", "search")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, what was made of it, texts and questions."""
    folder = tmp_path_factory.mktemp("data")
    write_sources(folder)
    goldstick.quantize(folder / "llama", "rtn-w4a16-g32", output=folder / "compressed", proof="tensors")
    questions = [
        {"question": f"How many cats sat on {number} mats?", "choices": ["one", "seven cats", "a mat"], "answer": 1}
        for number in range(9)
    ]
    (folder / "choice.jsonl").write_text("\n".join(json.dumps(question) for question in questions))
    asked = [{"question": f"Who sat on {number} mats?", "answer": "cats"} for number in range(9)]
    (folder / "qa.jsonl").write_text("\n".join(json.dumps(question) for question in asked))
    return folder


def jobs(data: Path, folder: Path) -> list[dict[str, Any]]:
    """What is done, by its name."""
    model, compressed, text = str(data / "llama"), str(data / "compressed"), str(data / "rows.jsonl")
    stream = {"dataset": str(data / "stream.txt"), "samples": 5, "seq_len": 48}
    tasks = [f"text:{text}", f"choice:{data / 'choice.jsonl'}", f"qa:{data / 'qa.jsonl'}"]
    options = {"bits": 6.5, "effort": "default", "dataset": stream["dataset"], "samples": 5, "seq_len": 48,
               "held_out_rows": 7, "schemes": ["w3a16-g32", "w4a16-g32", "w8a16-g32"],
               "calibration": {"samples": 8, "seq_len": 48}}  # fmt: skip
    found: dict[str, dict[str, Any]] = {
        "evaluate": {"model": compressed, "baseline": model, "tasks": tasks},
        "sensitivity": {"model": model, "text": stream},
        "attribute": {"model": model, "compressed": compressed, "text": stream},
        "search": {"model": model, "options": {**options, "journal": None}},
        "export": {"compressed": compressed},
    }
    return [{"do": name, "output": str(folder / name), **job} for name, job in found.items()]


def test_several_processes_find_what_one_finds(data: Path, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    for folder in (alone, together):
        folder.mkdir()
    for job in jobs(data, alone):
        work(job)
    for code, errors in finish(start(2, jobs(data, together))):
        assert code == 0, errors
    for name in MEASURES:
        one = (alone / f"{name}.0.json").read_text()
        for rank in range(2):
            assert (together / f"{name}.{rank}.json").read_text() == one, name
    assert contents(together / "export") == contents(alone / "export")
