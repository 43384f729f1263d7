"""``--input-bits``: commands that run a model round what its layers are given to fewer bits, and say so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import goldstick
from goldstick.jobs.load.find_model import reference_directory
from goldstick.jobs.load.load import load_float
from goldstick.jobs.save import finish
from tests.support.commands import run
from tests.support.proofs import prove_here

TEXT = ("--tasks", "text", "--limit", "3", "--data-dir", "reference")


@pytest.fixture(autouse=True)
def sixteen_again() -> Iterator[None]:
    yield
    goldstick.set_input_bits(16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The reference model in Q4_K_M."""
    folder = tmp_path_factory.mktemp("model") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", prove_here)
        goldstick.apply(load_float(reference_directory()), "rtn-q4_k_m").save(folder)
    return str(folder)


def answer(*words: str) -> Any:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if "--json" in words else result.stdout


def test_what_it_costs_is_measured(model: str, tmp_path: Path) -> None:
    usual = answer("evaluate", model, *TEXT, "--json")
    found = answer("evaluate", model, *TEXT, "--json", "--input-bits", "8", "--report", str(tmp_path))
    assert "input_bits" not in usual["model"]
    assert found["model"]["input_bits"] == 8
    before, after = (one["tasks"]["text"]["metrics"]["perplexity"] for one in (usual, found))
    assert after != before
    assert after == pytest.approx(before, rel=0.02)
    assert "rounded to 8 bits by the CPU" in (tmp_path / "report.html").read_text()
    assert "inputs of compressed layers were rounded to 8 bits" in answer("evaluate", model, *TEXT, "--input-bits", "8")
    assert "rounded to" not in answer("evaluate", model, *TEXT)


def test_two_models_are_compared_with_it(model: str) -> None:
    words = (
        "compare",
        "reference",
        model,
        "--dataset",
        "reference",
        "--data-dir",
        "reference",
        "--samples",
        "2",
        "--json",
    )
    usual, found = answer(*words), answer(*words, "--input-bits", "8")
    assert found.pop("input_bits") == 8
    assert "input_bits" not in usual
    assert found != usual


def test_a_model_writes_with_it(model: str) -> None:
    words = ("generate", model, "--prompt", "The harbour lies", "--max-new-tokens", "5")
    assert answer(*words, "--input-bits", "8").startswith("The harbour lies on the")


def test_other_numbers_are_refused(model: str) -> None:
    result = run("generate", model, "--prompt", "x", "--input-bits", "4")
    assert result.exit_code == 2
    assert "'4' is not one of '16', '8'" in result.output
