"""Several processes: are the files those of one, whatever their number, and whoever of them is killed?

``worlds``: every recipe of the tests with 2, 3 and 4 ranks (gloo, one thread each), all files against those of one
process. ``kills``: one rank is killed (SIGKILL) at a random moment; another number of ranks goes on, until it is done.

``speed``: GPTQ in groups of 128 of a Llama of 160 million random weights, calibrated on 16 rows of 512 tokens, by one
process of two threads, and by two and four of one thread: seconds, each rank's work, waiting, bytes sent, peak memory.

    python -m benchmarks.ranks worlds kills speed --out benchmarks/results/ranks.json
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.random_llama import config
from goldstick.hf.random_models import float_llama
from tests.support.crash_points import contents
from tests.support.rank_jobs import DATA_FREE, RECIPES, job, made, write_sources
from tests.support.ranks import finish, start

Files = dict[str, dict[str, bytes]]
_MOST_TRIES = 6


def worlds(sources: Path, folder: Path, alone: Files) -> dict[str, Any]:
    """The files of 2, 3 and 4 ranks against those of one."""
    found = {}
    for count in (2, 3, 4):
        together = made(sources, folder / f"of {count}", count)
        found[str(count)] = {name: together[name] == alone[name] for name in RECIPES}
        print(
            f"{count} ranks: {sum(found[str(count)].values())} of {len(RECIPES)} recipes give the same bytes",
            flush=True,
        )
    return {"files": sum(map(len, alone.values())), "equal to one process": found}


def kills(sources: Path, folder: Path, alone: Files, count: int, seed: int) -> dict[str, Any]:
    """Kill one rank of a run at random, and go on with another number of ranks."""
    chance = random.Random(seed)
    runs = []
    for number in range(count):
        name = chance.choice([name for name in RECIPES if name not in DATA_FREE])  # nothing to go on from
        output = folder / f"killed {number}"
        sizes, killed, done = [chance.choice((2, 3))], 0, False
        started = time.perf_counter()
        while not done:
            processes = start(sizes[-1], [job(sources, name, output, resume=len(sizes) > 1)])
            if len(sizes) < _MOST_TRIES and killed == 0:
                journal = output.parent / f".{output.name}.work"
                while not journal.exists() and processes[0].poll() is None:
                    time.sleep(0.01)  # before it, nothing is there to go on from
                time.sleep(chance.uniform(0, 2.0))
                victim = chance.randrange(sizes[-1])
                killed += processes[victim].poll() is None
                processes[victim].send_signal(signal.SIGKILL)
            codes = [code for code, _ in finish(processes)]
            done = not any(codes) or output.exists()
            if not done:
                sizes.append(chance.choice([size for size in (1, 2, 3) if size != sizes[-1]]))
        same = contents(output) == alone[name]
        runs.append({"recipe": name, "ranks": sizes, "killed": killed, "same": same})
        print(f"{number + 1}/{count} {name}: ranks {sizes}, {'same' if same else 'DIFFERENT'} bytes, "
              f"{time.perf_counter() - started:.0f} s", flush=True)  # fmt: skip
    return {"runs": runs, "same": sum(run["same"] for run in runs), "killed": sum(run["killed"] for run in runs)}


def speed(folder: Path) -> list[dict[str, Any]]:
    """One process of two threads beside several of one."""
    source = folder / "160M"
    torch.manual_seed(0)
    float_llama(config("160M")).save_pretrained(source)
    rows = folder / "rows.safetensors"
    save_file({"input_ids": torch.randint(0, 32000, (16, 512))}, rows)
    recipe = {"stages": [{"gptq": {"scheme": "w4a16-g128"}}], "calibration": {"dataset": str(rows), "samples": 16}}
    found = []
    for count, threads in ((1, 2), (2, 1), (4, 1)):
        output = folder / f"by {count}"
        task = {"source": str(source), "recipe": recipe, "output": str(output), "options": {}}
        started = time.perf_counter()
        processes = start(count, [task], {"OMP_NUM_THREADS": str(threads)})
        peaks = [0] * count
        while any(process.poll() is None for process in processes):
            for number, process in enumerate(processes):
                if process.poll() is None:
                    peaks[number] = max(peaks[number], _peak(process.pid))
            time.sleep(0.2)
        for code, errors in finish(processes):
            assert code == 0, errors
        report = json.loads((output / "report.json").read_text(encoding="utf-8"))
        one = {
            "ranks": count, "threads": threads, "seconds": round(time.perf_counter() - started, 1),
            "peak_bytes": peaks, "of each": report.get("ranks", {}),
        }  # fmt: skip
        found.append(one)
        print(one, flush=True)
    return found


def _peak(process: int) -> int:
    """The largest resident set of a process so far, in bytes; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=("worlds", "kills", "speed"))
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sources = folder / "sources"
        sources.mkdir()
        write_sources(sources)
        alone = {} if options.what == ["speed"] else made(sources, folder / "alone", 1)
        found: dict[str, Any] = {"recipes": list(RECIPES)}
        if options.out and options.out.exists():  # what was found by another call of it
            found = json.loads(options.out.read_text(encoding="utf-8")) | found
        if "worlds" in options.what:
            found["worlds"] = worlds(sources, folder, alone)
        if "kills" in options.what:
            found["kills"] = kills(sources, folder, alone, options.kills, options.seed)
        if "speed" in options.what:
            found["speed"] = speed(folder)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not all(all(one.values()) for one in found.get("worlds", {}).get("equal to one process", {}).values()):
        raise SystemExit("Some files are not those of one process.")
    if any(not run["same"] for run in found.get("kills", {}).get("runs", ())):
        raise SystemExit("Some runs that went on gave other files.")


if __name__ == "__main__":
    main()
