"""Calibrated runs on another device than the processor, which one of tests stands in for where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import goldstick
from goldstick.errors import UsageError
from tests.support.crash_points import contents
from tests.support.rank_jobs import job, write_sources
from tests.support.ranks import finish, start

ROOT = Path(__file__).resolve().parents[3]
NAME = "gold"  # the device of tests, which is not imported here


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, and text as one stream and as rows of unequal length."""
    folder = tmp_path_factory.mktemp("data")
    write_sources(folder)
    return folder


def test_what_runs_on_a_device_runs_on_it_alone() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/support/device_checks.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "10 passed" in found.stdout


def test_two_processes_with_a_device_each_write_what_one_writes(data: Path, tmp_path: Path) -> None:
    names = ("awq-gptaq", "imatrix-slb")
    jobs = [job(data, name, tmp_path / name, device=NAME) for name in names]
    alone = [job(data, name, tmp_path / f"{name} alone", device=NAME) for name in names]
    for one in (*jobs, *alone):
        one["recipe"]["calibration"]["samples"] = 8  # every operator passes through Python there
    for code, errors in finish([*start(2, jobs), *start(1, alone)]):
        assert code == 0, errors
    for one, other in zip(jobs, alone, strict=True):
        assert contents(Path(one["output"])) == contents(Path(other["output"]))


def test_a_device_that_is_not_there_is_named_before_anything_is_read(data: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(UsageError, match="There is no device 'cuda' here"):
        goldstick.quantize(data / "llama", "rtn-w4a16-g32", output=tmp_path / "made", device="cuda")
