"""Mutated texts through their readers: ``python -m tests.fuzz_texts --inputs N --seed S --out FILE``.

Every text that comes from a checkpoint or a user is mutated, byte by byte, line by line and by its structure, and read
as a user has it read. A reader gives something or raises a :class:`GoldstickError`, within five seconds; anything else
is a fault, which is printed with the seed that gives that input again (``--only KIND --seed S --inputs 1``).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from goldstick.calibration.data.chat_template import ChatTemplates
from goldstick.errors import GoldstickError
from goldstick.hf.names import quiet_libraries
from tests.texts.kinds import Kind, kinds
from tests.texts.mutations import mutate_text

#: A single input that takes longer hangs.
SECONDS = 5.0
_MOST_FAULTS = 40


class Tally:
    """What came of the inputs of one kind; seconds are of this process, beside which templates have one with limits."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter(accepted=0, refused=0)
        self.slowest = 0.0
        self.slowest_seed = -1
        self.seconds = 0.0

    def count(self, outcome: str, seconds: float, seed: int) -> None:
        self.outcomes[outcome] += 1
        self.seconds += seconds
        if seconds > self.slowest:
            self.slowest, self.slowest_seed = seconds, seed

    def plain(self) -> dict[str, Any]:
        slowest = {"seconds": round(self.slowest, 4), "seed": self.slowest_seed}
        return {**self.outcomes, "seconds": round(self.seconds, 1), "slowest": slowest}


def run(inputs: int, seed: int, folder: Path, only: str | None = None) -> dict[str, Any]:
    """Read mutated texts: what came of them, by kind; the faults by the place that raised them.

    Args:
        inputs: How many.
        seed: The first input's; the next has the next.
        folder: An empty one to write in.
        only: The one kind to read, where not all are.
    """
    with ChatTemplates() as templates:
        every = kinds(folder, templates)
        chosen = {only: every[only]} if only else every
        names = list(chosen)
        texts = [text for kind in every.values() for text in kind.texts]
        weights = [kind.weight for kind in chosen.values()]
        tallies = {name: Tally() for name in names}
        faults: dict[str, str] = {}
        place = folder / "input"
        place.mkdir()
        for kind in chosen.values():  # what is imported at first use is no input's memory or time
            for text in kind.texts:
                _outcome(kind, text, _empty(place))
        before, started, largest = _peak(), time.monotonic(), 0
        for number in range(seed, seed + inputs):
            dice = random.Random(number)
            name = dice.choices(names, weights)[0]
            text = mutate_text(dice.choice(chosen[name].texts), texts, dice)
            largest = max(largest, len(text))
            began = time.process_time()
            outcome = _outcome(chosen[name], text, _empty(place))
            tallies[name].count(outcome.split(" ")[0], time.process_time() - began, number)
            if outcome.startswith("fault") and outcome not in faults and len(faults) < _MOST_FAULTS:
                faults[outcome] = f"--only {json.dumps(name)} --seed {number} --inputs 1"
        return {
            "inputs": inputs,
            "seed": seed,
            "faults": faults,
            "largest_input": largest,
            "growth_of_memory": _peak() - before,
            "seconds": round(time.monotonic() - started, 1),
            "kinds": {name: tally.plain() for name, tally in tallies.items()},
        }


def run_in_parts(inputs: int, seed: int, processes: int) -> dict[str, Any]:
    """The same from several processes, each with a part of the seeds."""
    size = -(-inputs // processes)
    parts = [(min(size, inputs - start), seed + start) for start in range(0, inputs, size)]
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(_part, *zip(*parts, strict=True)))
    whole = found[0] | {"inputs": inputs, "seconds": max(part["seconds"] for part in found)}
    for part in found[1:]:
        whole["faults"] |= part["faults"]
        for key in ("largest_input", "growth_of_memory"):
            whole[key] = max(whole[key], part[key])
        for name, tally in part["kinds"].items():
            summed = whole["kinds"][name]
            slowest = max(summed["slowest"], tally.pop("slowest"), key=lambda entry: entry["seconds"])
            whole["kinds"][name] = {key: round(summed.get(key, 0) + value, 1) for key, value in tally.items()}
            whole["kinds"][name]["slowest"] = slowest
    return whole


def _part(inputs: int, seed: int, only: str | None = None) -> dict[str, Any]:
    warnings.simplefilter("error")
    quiet_libraries()
    memory = Path("/dev/shm")  # where opening a file takes no time
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        return run(inputs, seed, Path(folder), only)


def _outcome(kind: Kind, text: bytes, folder: Path) -> str:
    """``accepted``, ``refused``, or ``fault`` with the error and the line of goldstick that it came from."""
    _watch(SECONDS)
    try:
        kind.read(text, folder)
        return "accepted"
    except GoldstickError as error:
        _watch(0)
        return "refused" if len(str(error)) < 10_000 else f"fault a message of {len(str(error)):,} characters"
    except Exception as error:
        _watch(0)
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if "/goldstick/" in frame.filename]
        where = f"{Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else "no line of goldstick"
        return f"fault {type(error).__name__} at {where}: {str(error)[:100]}"
    finally:
        _watch(0)


def _empty(folder: Path) -> Path:
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    return folder


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _watch(seconds: float) -> None:
    """Interrupt after some seconds of processor time, which others on the machine do not stretch; 0: do not."""
    signal.signal(signal.SIGPROF, _hang)
    signal.signal(signal.SIGALRM, _hang)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 12 * seconds)


def _hang(*_: object) -> None:
    raise TimeoutError(f"not read and not refused after {SECONDS} seconds")


def main() -> int:
    """Run, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one kind of text")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.processes > 1:
        found = run_in_parts(arguments.inputs, arguments.seed, arguments.processes)
    else:
        found = _part(arguments.inputs, arguments.seed, arguments.only)
    print(json.dumps(found, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
