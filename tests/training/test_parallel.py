"""Several processes give the network that one gives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from goldstick.training.parallel import Workers
from tests.support.training_worker import STEPS, work


def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    several = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    processes = []
    for rank in range(2):
        settings = {**os.environ, **several, "RANK": str(rank)}
        command = [sys.executable, "-m", "tests.support.training_worker", str(together)]
        processes.append(subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True))
    work(alone)
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    expected: dict[str, Any] = torch.load(alone / "0.pt")
    found = [torch.load(together / f"{rank}.pt") for rank in range(2)]
    assert expected["seen"] == [8, 8, 5, 8, 8, 5, 8][:STEPS]
    assert [one["seen"] for one in found] == [[4, 4, 3, 4, 4, 3, 4], [4, 4, 2, 4, 4, 2, 4]]
    for name, value in expected["model"].items():
        for kind in ("model", "noisy"):
            assert torch.equal(found[0][kind][name], found[1][kind][name])
        torch.testing.assert_close(found[0]["model"][name], value, rtol=1e-9, atol=1e-12)
    assert found[0]["record"] == found[1]["record"]
    assert found[0]["record"]["losses"] == pytest.approx(expected["record"]["losses"], rel=1e-12)
    assert found[0]["record"]["scores"] == expected["record"]["scores"] == (3, 6, 7)
    assert [path.name for path in (together / "state").iterdir()] == ["training.pt"]


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_every_row_of_a_batch_is_taken_once(rows: int) -> None:
    batch = {"x": torch.arange(rows), "y": [torch.arange(2 * rows).reshape(rows, 2)], "scalar": torch.tensor(3.0)}
    parts = [Workers(rank, 3).rows_of(batch) for rank in range(3)]
    taken = [int(row) for part, share in parts if share for row in part["x"]]
    assert taken == list(range(rows))
    assert sum(share for _, share in parts) == pytest.approx(1)
    for part, share in parts:
        assert part["y"][0].shape == (len(part["x"]), 2) and part["scalar"] == 3
        assert share == (len(part["x"]) / rows if share else 0)
        assert len(part["x"]) >= 1  # a forward of nothing would fail
