"""Hundreds of mutated texts of every kind: each is read or refused with an error of ours, without a crash or a hang."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from tests.texts.mutations import mutate_text

ROOT = Path(__file__).resolve().parent.parent
INPUTS = 500


def test_mutated_texts_are_read_or_refused_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz_texts", "--inputs", str(INPUTS), "--out", str(tmp_path / "found.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    kinds = found["kinds"]
    assert sum(kind["accepted"] + kind["refused"] for kind in kinds.values()) == INPUTS
    assert sum(kind["refused"] for kind in kinds.values()) > INPUTS // 3
    assert sum(kind["accepted"] for kind in kinds.values()) > INPUTS // 20
    assert found["growth_of_memory"] < 256 * 2**20


def test_a_seed_gives_the_same_text_and_another_seed_another() -> None:
    sound = b'{"a": {"b": [1, 2, 3]}, "c": "d"}\n{"e": 1}\n{"f": 2}'

    def mutated(seed: int) -> bytes:
        return mutate_text(sound, [sound], random.Random(seed))

    assert mutated(7) == mutated(7)
    assert len({mutated(seed) for seed in range(200)}) > 150
