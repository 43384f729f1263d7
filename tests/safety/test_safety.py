"""A few of the sequences that ``make safety`` runs by the thousand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.safety.sequences import make_source, run_sequences

SEEDS = [range(first, first + 15) for first in range(0, 30, 15)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every tree begins with."""
    torch.set_num_threads(1)  # a process whose kernels ran on several cannot be forked
    return make_source(tmp_path_factory.mktemp("source"))


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_no_command_loses_what_is_not_goldsticks(seeds: range, source: Path, tmp_path: Path) -> None:
    tally = run_sequences(source, tmp_path, seeds)
    assert tally.lost == []
    assert tally.sequences == len(seeds)
    assert any(end.endswith(" 0") for end in tally.ends)
    assert tally.deeds["put"] > 0
