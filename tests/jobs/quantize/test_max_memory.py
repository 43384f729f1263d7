"""A limit of memory that a run cannot keep is refused, with the least that would do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import goldstick
from goldstick.calibration import memory_budget
from goldstick.errors import UsageError
from goldstick.jobs.quantize import quantize
from tests.support.crash_points import STAGES, run, tiny_checkpoint, write_text
from tests.support.tiny_tokenizer import write_tokenizer

GPTQ: dict[str, Any] = {"stages": [{"gptq": {"scheme": "w4a16-g32"}}]}
LEARN: dict[str, Any] = {"stages": [{"rtn": {"scheme": "w4a16-g32"}}, {"learn": {"steps": 2}}]}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint of one block, and a text beside it."""
    write_text(tmp_path / "text.txt")
    return tiny_checkpoint(tmp_path / "source", 1)


@pytest.mark.parametrize("stages", ["rtn", "gptq", "rotate"])
def test_a_byte_is_refused_and_what_the_message_names_is_taken(stages: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"takes [\d.]+ GB at least") as refused:
        run(source, tmp_path / "text.txt", tmp_path / "out", stages, max_memory=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "text.txt"]
    named = re.search(r"--max-memory (\d+)MB or more", str(refused.value))
    assert named is not None
    run(source, tmp_path / "text.txt", tmp_path / "out", stages, max_memory=int(named[1]) * 1_000_000 + 100_000_000)


@pytest.mark.parametrize("given", [0, -1, 0.5, float("inf"), float("nan"), True, "8GB"])
def test_nonsense_is_no_limit(given: Any, source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a number of bytes, 1 or more; not"):
        run(source, tmp_path / "text.txt", tmp_path / "out", "gptq", max_memory=given)


def test_a_model_that_cannot_be_taken_apart_needs_the_memory_of_a_whole_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize, "prepare", lambda *_: None)
    monkeypatch.setattr(memory_budget, "used_memory", lambda: 0)
    plan = goldstick.api.plan(
        source, {"stages": STAGES["gptq"], "calibration": {"dataset": str(tmp_path / "text.txt")}}
    )
    assert plan.least_memory < plan.whole_memory + 1_000_000
    monkeypatch.setattr(type(plan), "whole_memory", 10**12)
    with pytest.raises(UsageError, match=r"takes 1000\.0 GB at least"):
        run(source, tmp_path / "text.txt", tmp_path / "out", "gptq", max_memory=10**10)


#: A command that is allowed a byte, which is refused, and then the least that this names, which it prints first.
REFUSED_AND_TAKEN = r"""
import re, sys
from goldstick.cli import main
from goldstick.cli.quantize import quantize
from goldstick.errors import UsageError
try:
    quantize.main([*sys.argv[2:], "--max-memory", "1"], standalone_mode=False)
except UsageError as error:
    least = re.search(r"--max-memory (\d+)MB or more", str(error))[1]
print(least)
main([*sys.argv[1:], "--max-memory", f"{least}MB"])
"""


@pytest.mark.parametrize("stages", [GPTQ, LEARN], ids=["gptq", "learn"])
def test_the_least_that_is_named_is_kept(stages: dict[str, Any], tmp_path: Path) -> None:
    """In a process of its own, on a model whose blocks are larger than what a forecast may err."""
    config = LlamaConfig(
        vocab_size=128, hidden_size=512, intermediate_size=2048, num_hidden_layers=2, num_attention_heads=8,
        max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "source")
    write_tokenizer(tmp_path / "source")
    write_text(tmp_path / "text.txt")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(stages))
    words = ["quantize", str(tmp_path / "source"), "-o", str(tmp_path / "out"), "--recipe", str(recipe)]
    words += ["--dataset", str(tmp_path / "text.txt"), "--samples", "16", "--seq-len", "16"]
    ended = subprocess.run(
        [sys.executable, "-c", REFUSED_AND_TAKEN, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["peak_memory"] <= int(ended.stdout.splitlines()[0]) * 1_000_000
