"""Two machines of two processes each: the files of one process, and what becomes of a run that something happens to.

The machines are network namespaces with a wire between them (``tests/support/wire.py``), each with its own copy of the
model and the data under a path of its own; torchrun starts two processes on each.

``files``: every recipe of the tests, at several delays of the wire: all files against those of one process.
``cut``: the wire is cut behind the first block; what the first process says, and whether another number of processes
goes on to the same bytes. ``disk``: the disk of the first machine fills up on the way. ``slow``: one process is stopped
for a while; what the report says. Needs Linux and the rights of root, for the namespaces.

    python -m benchmarks.two_machines files cut disk slow --out benchmarks/results/two_machines.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.crash_points import contents
from tests.support.rank_jobs import RECIPES, job, made, measured, write_sources
from tests.support.ranks import finish, start
from tests.support.wire import ADDRESSES, DEVICE, Wire

_DELAYS = (0.0, 0.005)
#: Seconds after which a silent process counts as lost, in the runs that something happens to.
_SILENCE = 12
_FAULTY = "awq-gptaq"


def begin(wire: Wire, jobs: Sequence[Sequence[Any]], silence: int = 3600) -> list[subprocess.Popen[str]]:
    """Start torchrun with two processes on each machine; each machine has jobs of its own."""
    started = []
    for machine in range(2):
        torchrun = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2",
            "--node-rank", str(machine), "--master-addr", ADDRESSES[0], "--master-port", "29511",
            "-m", "tests.support.ranks", json.dumps(jobs[machine]),
        ]  # fmt: skip
        settings = os.environ | {"GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1"}
        settings |= {"GOLDSTICK_RANK_TIMEOUT": str(silence), "TORCHELASTIC_ERROR_FILE": ""}
        pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        command = wire.inside(machine, torchrun)
        started.append(subprocess.Popen(command, env=settings, text=True, start_new_session=True, **pipes))
    return started


def end(processes: Sequence[subprocess.Popen[str]], seconds: float = 300) -> list[tuple[int, str]]:
    """Exit code and errors of each; one that does not end is ended."""
    found = []
    for process in processes:
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            _, errors = process.communicate()
        found.append((process.returncode, errors))
    return found


def said(errors: str) -> list[str]:
    """What goldstick said, without what torchrun adds, and without the folder that all lies in."""
    lines = [line.strip() for line in errors.splitlines() if line.startswith("rank ")]
    return [re.sub(re.escape(tempfile.gettempdir()) + r"/\w+/", "", line) for line in lines]


def files(folder: Path, places: Sequence[Path], alone: dict[str, dict[str, bytes]]) -> list[dict[str, Any]]:
    """The files of two machines against those of one process."""
    found = []
    for delay in _DELAYS:
        output = folder / f"delay {delay}"
        jobs = [[job(place, name, output / name) for name in RECIPES] for place in places]
        output.mkdir()
        began = time.perf_counter()
        with Wire(delay) as wire:
            for code, errors in end(begin(wire, jobs), 1500):
                assert code == 0, errors
        same = {name: contents(output / name) | measured(output / name) == alone[name] for name in RECIPES}
        one = {"delay_seconds": delay, "seconds": round(time.perf_counter() - began, 1),
               "carried_bytes": wire.carried, "same": same}  # fmt: skip
        found.append(one)
        print(one, flush=True)
    return found


def _running(folder: Path, places: Sequence[Path], wire: Wire, name: str) -> tuple[Path, list[subprocess.Popen[str]]]:
    """A run that has begun to write."""
    output = folder / name
    output.parent.mkdir(exist_ok=True)
    processes = begin(wire, [[job(place, _FAULTY, output)] for place in places], _SILENCE)
    journal = output.with_name(f".{output.name}.work") / "journal.json"
    while not journal.exists() and all(process.poll() is None for process in processes):
        time.sleep(0.005)
    return output, processes


def _go_on(places: Sequence[Path], output: Path, alone: dict[str, bytes], count: int) -> bool:
    """Whether so many processes go on to the files of one."""
    for code, errors in finish(start(count, [job(places[0], _FAULTY, output, resume=True)])):
        assert code == 0, errors
    return contents(output) == alone


def cut(folder: Path, places: Sequence[Path], alone: dict[str, bytes]) -> list[dict[str, Any]]:
    """Cut the wire behind the first block, and go on with other numbers of processes."""
    found = []
    for count in (1, 3):
        with Wire(0.002) as wire:
            output, processes = _running(folder, places, wire, f"cut, then {count}")
            wire.cut()
            began = time.perf_counter()
            (code, errors), (_, others) = end(processes, 120)
        one = {"exit_code": code, "seconds_until_the_error": round(time.perf_counter() - began, 1),
               "said": said(errors), "said_by_the_other_machine": said(others), "output": output.exists(),
               "then_ranks": count, "same": _go_on(places, output, alone, count)}  # fmt: skip
        found.append(one)
        print(one, flush=True)
    return found


def disk(folder: Path, places: Sequence[Path], alone: dict[str, bytes]) -> dict[str, Any]:
    """Fill up the disk of the first machine behind the first block, then make room and go on."""
    small = folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(small)], check=True)
    try:
        with Wire(0.0) as wire:
            output, processes = _running(folder, places, wire, "small/full")
            with (small / "filler").open("wb", buffering=0) as filler, suppress(OSError):  # until there is no room
                while True:
                    filler.write(bytes(4096))
            (code, errors), (_, others) = end(processes, 120)
        (small / "filler").unlink()
        found = {"exit_code": code, "said": said(errors), "said_by_the_other_machine": said(others),
                 "output": output.exists(), "then_ranks": 2, "same": _go_on(places, output, alone, 2)}  # fmt: skip
    finally:
        subprocess.run(["umount", str(small)], check=True)
    print(found, flush=True)
    return found


def slow(folder: Path, places: Sequence[Path], alone: dict[str, bytes]) -> dict[str, Any]:
    """Stop one process of the second machine for 14 seconds; what the report says."""
    output = folder / "slow"
    processes = start(3, [job(places[0], _FAULTY, output)])
    journal = output.with_name(f".{output.name}.work") / "journal.json"
    while not journal.exists() and processes[0].poll() is None:
        time.sleep(0.005)
    processes[2].send_signal(signal.SIGSTOP)
    time.sleep(14)
    processes[2].send_signal(signal.SIGCONT)
    for code, errors in finish(processes):
        assert code == 0, errors
    report = json.loads((output / "report.json").read_text(encoding="utf-8"))
    warned = [text for text in report["warnings"] if text.startswith("rank ")]
    found = {"warnings": warned, "ranks": report["ranks"], "same": contents(output) == alone}
    print(found, flush=True)
    return found


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=("files", "cut", "disk", "slow"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.out and options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        places = [folder / name for name in ("one", "other")]
        places[0].mkdir()
        write_sources(places[0])
        shutil.copytree(*places)
        if "files" in options.what:
            found["files"] = files(folder, places, made(places[0], folder / "alone", 1))
        for code, errors in finish(start(1, [job(places[0], _FAULTY, folder / "by one")])):
            assert code == 0, errors
        alone = contents(folder / "by one")
        for name, try_it in (("cut", cut), ("disk", disk), ("slow", slow)):
            if name in options.what:
                found[name] = try_it(folder, places, alone)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
