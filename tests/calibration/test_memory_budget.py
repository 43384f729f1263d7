"""What a process is counted to hold is its own."""

from __future__ import annotations

import mmap
import subprocess
import sys

from goldstick.calibration import memory_budget

HELD = 1_500_000_000  # more than torch and goldstick take
PROGRAM = "from goldstick.calibration.memory_budget import peak_memory; print(peak_memory())"


def test_the_peak_of_a_process_is_not_that_of_who_started_it() -> None:
    starter = (
        f"import subprocess, sys; held = bytes({HELD}).replace(b'0', b'1'); "
        f"subprocess.run([sys.executable, '-c', {PROGRAM!r}], check=True)"
    )
    printed = subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True, check=True).stdout
    assert 10_000_000 < int(printed) < HELD / 2


def test_the_peak_stays_when_memory_is_given_back() -> None:
    held = mmap.mmap(-1, HELD // 10)  # the C library would serve a bytearray from what it kept of earlier ones
    held.write(b"1" * len(held))
    most = memory_budget.used_memory()
    held.close()
    assert memory_budget.used_memory() < most - 50_000_000
    assert memory_budget.peak_memory() > most - 10_000_000  # the kernel counts by processor, and adds up now and then
