"""Many architectures, each in a process of its own that may use so much time and memory."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from tools.zoo.catalogue import Architecture
from tools.zoo.stages import Record, live

#: What a process may take: seconds, and bytes of addresses, of which torch alone takes two thousand million.
SECONDS = 150.0
#: By how much more those get that are run again.
PATIENCE = 4
MEMORY = 12 * 2**30


def run(
    herd: Iterable[Architecture],
    stages: tuple[str, ...],
    processes: int,
    *,
    seconds: float = SECONDS,
    fresh_proofs: bool = False,
    done: Callable[[str, Record], None] = lambda name, record: None,
) -> dict[str, Record]:
    """What became of each architecture, by its name; ``done`` is told of each as it ends.

    Those that are not done in time, as where other work takes the processor, are run again in the end, one by one, with
    ``PATIENCE`` times as many seconds.
    """
    found: dict[str, Record] = {}

    def note(architecture: Architecture, record: Record) -> None:
        found[architecture.name] = record
        done(architecture.name, record)

    late: list[Architecture] = []
    for architecture, record in _each(herd, stages, processes, seconds, fresh_proofs):
        if record is None:
            late.append(architecture)
        else:
            note(architecture, record)
    for architecture, record in _each(late, stages, 1, PATIENCE * seconds, fresh_proofs):
        note(architecture, record or _ended(architecture, f"not done within {PATIENCE * seconds:.0f} seconds"))
    return dict(sorted(found.items()))


def _each(
    herd: Iterable[Architecture], stages: tuple[str, ...], processes: int, seconds: float, fresh_proofs: bool
) -> Iterator[tuple[Architecture, Record | None]]:
    """What became of each, as it ends; ``None`` of one that is not done in time."""
    context = multiprocessing.get_context("fork")  # the libraries are imported once
    waiting = list(herd)
    running: dict[Connection, tuple[Architecture, Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < processes:
            architecture = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_live_alone, args=(architecture, stages, fresh_proofs, theirs))
            process.start()
            theirs.close()
            running[ours] = architecture, process, time.monotonic() + seconds
        ready = wait(list(running), timeout=0.2)
        for pipe, (architecture, process, end) in list(running.items()):
            if pipe not in ready and time.monotonic() < end:
                continue
            record = _received(pipe, architecture) if pipe in ready else None
            if record is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.join(5)
            pipe.close()
            del running[pipe]
            yield architecture, record


def _live_alone(architecture: Architecture, stages: tuple[str, ...], fresh_proofs: bool, answer: Connection) -> None:
    os.setpgid(0, 0)  # with it end the processes that it starts
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, sys.stdout.fileno())
    os.dup2(silence, sys.stderr.fileno())
    import torch

    torch.set_num_threads(1)
    answer.send(json.dumps(live(architecture, stages, fresh_proofs)))
    answer.close()


def _received(pipe: Connection, architecture: Architecture) -> Record:
    try:
        record: Record = json.loads(pipe.recv())
        return record
    except EOFError:
        return _ended(architecture, "its process died: of memory, or of a signal")


def _ended(architecture: Architecture, error: str) -> Record:
    failures = {"process": {"class": "fault", "error": error}}
    kind = {"kind": architecture.kind, "config": architecture.config}
    return {**kind, "built": False, "passed": [], "failures": failures}
