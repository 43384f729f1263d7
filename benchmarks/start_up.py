"""How soon commands answer, beside the imports that they cannot do without.

    python -m benchmarks.start_up [--runs 7]

Each command runs in a fresh process, all of them in turn, so that none has the quieter minutes. "Libraries" is what a
plan imports before goldstick does anything: torch, and of transformers the classes of the reference model with the
table of names; garbage is not collected meanwhile, as goldstick does. Wall time and processor time, medians, with what
they read in the page cache. Writes ``benchmarks/results/start-up.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from goldstick.jobs.save.records import environment

RESULTS = Path(__file__).resolve().parent / "results" / "start-up.json"
LIBRARIES = """
import gc, os
gc.disable()
import torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping
os._exit(0)
"""
CLI = ["-m", "goldstick"]
COMMANDS = {
    "import goldstick": ["-c", "import goldstick"],
    "goldstick --help": [*CLI, "--help"],
    "goldstick recipes list": [*CLI, "recipes", "list"],
    "goldstick plan reference": [*CLI, "plan", "reference", "--recipe", "gptq-w4a16-g128"],
    "libraries": ["-c", LIBRARIES],
}


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for turn in range(runs + 1):
        for name, words in COMMANDS.items():
            found = timed(words)
            if turn:  # the first has the files read and compiled
                times[name].append(found)
    results = {
        name: {"seconds": round(median(wall), 3), "processor_seconds": round(median(processor), 3)}
        for name, (wall, processor) in ((name, zip(*found, strict=True)) for name, found in times.items())
    }
    RESULTS.write_text(json.dumps({"commands": results, "versions": environment()}, indent=1, sort_keys=True) + "\n")
    for name, row in results.items():
        print(f"{name}: {row['seconds']:.2f} s, {row['processor_seconds']:.2f} s of processor time")


def timed(words: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of a process."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, f"{' '.join(words)} ended with {status}"
    return time.perf_counter() - started, used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
