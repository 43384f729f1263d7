"""What no cache keeps, from what Linux says of the caches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from goldstick.jobs.bench.stopwatch import beyond_caches

MIB = 1 << 20


def write_caches(root: Path, *caches: tuple[int, int, str, str, str | None]) -> None:
    for processor, index, level, shared, size in caches:
        folder = root / f"cpu{processor}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, content in [("level", level), ("type", "Unified"), ("shared_cpu_list", shared)]:
            (folder / name).write_text(content + "\n")
        if size is not None:
            (folder / "size").write_text(size + "\n")


def test_each_cache_counts_once_and_the_sum_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 22, "SC_PAGE_SIZE": 4096}.__getitem__)
    second = [(processor, 2, "2", str(processor), "2048K") for processor in range(4)]
    last = [(processor, 3, "3", shared, "98304K") for processor, shared in enumerate(["0-1", "0-1", "2-3", "2-3"])]
    write_caches(tmp_path, *second, *last)
    assert beyond_caches(tmp_path) == 2 * (4 * 2 + 2 * 96) * MIB


def test_it_is_100_mib_at_least_and_an_eighth_of_the_memory_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert beyond_caches(tmp_path) == 100 * MIB  # nothing is said
    write_caches(tmp_path, (0, 3, "3", "0", None), (1, 3, "3", "1", "4096K"))
    assert beyond_caches(tmp_path) == 100 * MIB  # a size is not said, the other is small
    write_caches(tmp_path, (2, 3, "3", "2", f"{480 << 10}K"))
    assert beyond_caches(tmp_path) == 512 * MIB
