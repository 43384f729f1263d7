"""Runs in several processes, as torchrun starts them, and alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

_WORKER = [sys.executable, "-m", "tests.support.ranks"]


def start(count: int, jobs: Sequence[Mapping[str, Any]], variables: Mapping[str, str] | None = None) -> list[Any]:
    """Processes that do the same jobs together, and end; each job is what :func:`work` takes.

    Args:
        count: How many; one is alone.
        jobs: The jobs, one for all ranks, or one list for each.
        variables: Variables of the environment.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    found = []
    for rank in range(count):
        settings = {**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})}
        if count > 1:
            settings |= {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
            settings |= {"MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(count)}
        found.append(_started([job.get(f"rank {rank}", job) for job in jobs], settings))
    return found


def _started(jobs: Sequence[Mapping[str, Any]], settings: Mapping[str, str]) -> Any:
    command = [*_WORKER, json.dumps(jobs)]
    return subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(processes: Sequence[Any]) -> list[tuple[int, str]]:
    """The exit code of each, and what it said of errors."""
    said = [process.communicate()[1].decode() for process in processes]
    return [(process.wait(), errors) for process, errors in zip(processes, said, strict=True)]


def do(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Do one job after the other."""
    for one in jobs:
        work(one)


def work(job: Mapping[str, Any]) -> None:
    """Do what ``do`` of a job says, ``quantize`` where it says nothing."""
    import goldstick
    from goldstick.core.processes import rank
    from tests.support import rank_measures

    try:
        do = getattr(rank_measures, job["do"]) if "do" in job else quantize
        do(job)
    except goldstick.GoldstickError as error:
        notes = " ".join(getattr(error, "__notes__", []))
        sys.exit(f"rank {rank()}: {error} {notes}")


def quantize(job: Mapping[str, Any]) -> None:
    """Quantize ``source`` into ``output`` by ``recipe``, with ``options``; the proof is taken for granted."""
    from unittest.mock import patch

    import goldstick
    from goldstick.jobs.quantize import quantize as module
    from goldstick.jobs.save import finish
    from tests.support.second_device import NAME, few_candidates, second_device

    there = job.get("options", {}).get("device") == NAME
    with (
        second_device() if there else nullcontext(),
        few_candidates() if there else nullcontext(),
        patch.object(finish, "prove", lambda *_: {"passed": True}),
        patch.object(module, "structure_of_source", lambda _: {}),
    ):
        goldstick.quantize(job["source"], job["recipe"], output=job["output"], **job.get("options", {}))


if __name__ == "__main__":
    do(json.loads(sys.argv[1]))
