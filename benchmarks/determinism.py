"""Quantize the reference model with several numbers of threads, several times: are the bytes always the same?

python -m benchmarks.determinism --out benchmarks/results/determinism.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.crash import command
from tests.support.crash_points import contents

RECIPES = ("gptq-w4a16-g32", "awq-gptq-w4a16-g32", "smoothquant-gptq-w8a8")


def bytes_of(recipe: str, threads: int, folder: Path) -> str:
    """sha256 of all files of one run, the report left out."""
    output = folder / "out"
    arguments = [*command(recipe), "-o", str(output), "--threads", str(threads), "--overwrite"]
    subprocess.run(arguments, check=True, capture_output=True)
    digest = hashlib.sha256()
    for name, content in sorted(contents(output).items()):
        digest.update(name.encode() + hashlib.sha256(content).digest())
    return digest.hexdigest()


def main() -> None:
    """Run the matrix and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/determinism.json"))
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for recipe in options.recipes:
            runs = [
                (threads, bytes_of(recipe, threads, Path(folder)))
                for threads in options.threads
                for _ in range(options.runs)
            ]
            distinct = len({digest for _, digest in runs})
            results[recipe] = {
                "threads": options.threads,
                "runs": len(runs),
                "distinct": distinct,
                "sha256": runs[0][1],
            }
            print(recipe, json.dumps(results[recipe]), flush=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    if any(found["distinct"] != 1 for found in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
