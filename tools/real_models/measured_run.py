"""A command run to its end, with its time and its peak memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# A process counts the memory of the one it was forked from as its own, and this one holds models: so a small one, which
# holds nothing, is between it and the command.
_BETWEEN = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=sys.stderr)
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss]))
"""


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
        between = [sys.executable, "-I", "-S", "-c", _BETWEEN, *command]
        told = subprocess.run(between, cwd=folder, stdout=subprocess.PIPE, stderr=file, check=True).stdout
    code, processor_seconds, peak = json.loads(told)
    if code:
        raise RuntimeError(f"{' '.join(command)}: exit code {code}\n{log.read_text()[-2000:]}")
    return Run(
        seconds=time.monotonic() - started,
        processor_seconds=processor_seconds,
        peak_bytes=peak * 1024,  # Linux counts KiB
    )
