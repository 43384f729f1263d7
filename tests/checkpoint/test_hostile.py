"""Every hostile file is refused with an error of ours, soon, and in little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile import CASES

ROOT = Path(__file__).resolve().parent.parent.parent
MOST_MEMORY = 64 * 2**20


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of every case, in one process of its own, whose memory is theirs alone."""
    folder = tmp_path_factory.mktemp("hostile")
    command = [sys.executable, "-m", "tests.support.hostile", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads((folder / "results.json").read_text())
    return found


def test_the_sound_checkpoints_they_are_made_from_load(outcomes: dict[str, dict[str, Any]]) -> None:
    assert sum(name.startswith("sound ") for name in outcomes) == 7


def test_there_are_more_than_thirty() -> None:
    assert len(CASES) > 100


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_is_refused_in_words_and_in_little_memory(
    name: str, outcomes: dict[str, dict[str, Any]]
) -> None:
    found = outcomes[name]
    assert found["error"] == "GoldstickError", found
    assert 20 < len(found["message"]) < 1500
    assert found["message"].isprintable()
    assert found["growth"] < 2 * found["size"] + MOST_MEMORY
