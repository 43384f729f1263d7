"""A command run to its end, with its time and its peak memory."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a command took: seconds of the clock and of the processor, and the most memory it held, in bytes."""

    seconds: float
    processor_seconds: float
    peak_bytes: int


def run_measured(command: Sequence[str], folder: Path, log: Path) -> Run:
    """Run a command in a folder, what it prints in ``log``.

    Raises:
        RuntimeError: It failed; the message ends with what it printed last.
    """
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}\n{log.read_text()[-2000:]}")
    return Run(
        seconds=time.monotonic() - started,
        processor_seconds=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss * 1024,  # Linux counts KiB
    )
