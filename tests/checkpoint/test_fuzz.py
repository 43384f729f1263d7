"""Many mutated checkpoints: each is read or refused with an error of ours, without crash, hang, much memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.mutations import CONFIG, WEIGHTS, mutate

ROOT = Path(__file__).resolve().parent.parent.parent
INPUTS, DEEP = 500, 10


def test_mutated_checkpoints_are_read_or_refused_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.fuzz", "--out", str(tmp_path / "found.json")]
    command += ["--inputs", str(INPUTS), "--deep", str(DEEP)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["refused"] + found["accepted"] == INPUTS + DEEP
    assert found["growth"] < 2 * found["largest"] + 64 * 2**20
    # A flipped bit of a code is a legal code, so some are read; most mutations are of what readers must check.
    assert found["refused"] > INPUTS // 2
    assert found["accepted"] > INPUTS // 50


def test_a_seed_gives_the_same_mutation_and_another_seed_another() -> None:
    files = {CONFIG: b'{"a": {"b": [1, 2, 3]}, "c": "d"}', WEIGHTS: b"\x02" + b"\0" * 7 + b"{}" + b"\0" * 40}
    assert mutate(files, 7) == mutate(files, 7)
    assert len({tuple(sorted(mutate(files, seed).items())) for seed in range(200)}) > 150
