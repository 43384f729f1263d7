"""``python -m tests.safety --sequences N --seed S --out FILE``: random commands among other people's files."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from tests.safety.sequences import Tally, make_source, run_sequences

_WORKERS, _CHUNK = 2, 50


def _work(arguments: tuple[Path, Path, int, int]) -> Tally:
    torch.set_num_threads(1)
    source, scratch, first, count = arguments
    return run_sequences(source, scratch, range(first, first + count))


def main() -> int:
    """Run the sequences on both cores, print what was lost and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    started, total = time.monotonic(), Tally()
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(_WORKERS) as pool:
        source = Path(folder, "source")
        source.mkdir()
        make_source(source)
        first = options.seed * 10**7
        chunks = [
            (source, Path(folder), first + start, min(_CHUNK, options.sequences - start))
            for start in range(0, options.sequences, _CHUNK)
        ]
        for tally in pool.map(_work, chunks):
            total.add(tally)
            print(
                f"{total.sequences} sequences, {sum(total.ends.values())} commands, {len(total.lost)} wrong", flush=True
            )
            for lost in tally.lost:
                print(lost, flush=True)
    found = {
        "seed": options.seed,
        "sequences": total.sequences,
        "commands": sum(total.ends.values()),
        "ends": dict(sorted(total.ends.items())),
        "deeds_of_others": dict(sorted(total.deeds.items())),
        "wrong": total.lost,
        "minutes": round((time.monotonic() - started) / 60, 1),
    }
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return bool(total.lost)


if __name__ == "__main__":
    raise SystemExit(main())
