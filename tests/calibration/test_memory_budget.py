"""What a process is counted to hold is its own."""

from __future__ import annotations

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
    held = bytearray(b"1") * 100_000_000
    most = memory_budget.used_memory()
    del held
    assert memory_budget.used_memory() < most - 50_000_000
    assert memory_budget.peak_memory() > most - 10_000_000  # the kernel counts by processor, and adds up now and then
