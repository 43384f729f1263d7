"""Peak memory of a search, beside the number of blocks: ``python benchmarks/search_memory.py [--blocks 4 8 16 32]``.

Makes checkpoints of equal blocks as ``memory.py`` does, with a small tokenizer, and searches each for 4.25 bits a
weight in a process of its own, with GPTQ and the default effort: inputs of layers, gradient scores, measuring,
exchanges, and judging on held-out rows. Three candidates for each layer, and few rows of 64 tokens: what is looked at
is memory. A peak that grew with the number of blocks would mean that some step holds the whole model. The limits of
what a search holds (a model as a whole, changes, rounded weights) are a twentieth of those that it has otherwise, so
that models of moderate size go beyond them. Writes ``benchmarks/results/search-memory.json`` and a table of
docs/search.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import calibrated_memory
import memory

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "search-memory.json"
DOCUMENT = ROOT / "docs" / "search.md"
BEGIN, END = "<!-- written by benchmarks/search_memory.py -->", "<!-- end of memory -->"
TOKENS, ROWS = 64, 64
SEARCH = """
import json, sys
import torch
import goldstick
from goldstick.calibration.memory_budget import peak_memory
from goldstick.jobs.search import in_turn, reverse_sweep, rounding
in_turn.MOST_WHOLE //= 20
reverse_sweep.MOST_HELD //= 20
rounding.MOST_KEPT //= 20
torch.set_num_threads(1)
recipe = goldstick.search(
    sys.argv[1], bits=4.25, dataset=sys.argv[2], samples=2, seq_len=64, held_out_rows=4, method=sys.argv[3],
    effort=sys.argv[4], schemes=["w2a16-g32", "w4a16-g32", "w8a16-channel"], calibration={"samples": 8, "seq_len": 64},
)
print(json.dumps({"peak_bytes": peak_memory(), "bits": recipe.search["bits_per_weight"]}))
"""


def run(blocks: int, block_bytes: int, method: str, effort: str, folder: Path) -> dict[str, Any]:
    """Make a checkpoint, search, and remove it."""
    source, text = folder / "source", folder / "text.txt"
    generator = random.Random(0)
    text.write_text(" ".join(f"w{generator.randrange(memory.VOCABULARY)}" for _ in range(TOKENS * ROWS)))
    try:
        size = memory.write_checkpoint(source, memory.llama_config(blocks, block_bytes))
        calibrated_memory.write_tokenizer(source)
        began = time.perf_counter()
        found = subprocess.run(
            [sys.executable, "-c", SEARCH, str(source), str(text), method, effort], check=True, text=True,
            stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    finally:
        shutil.rmtree(source, ignore_errors=True)
    return {
        "blocks": blocks, "source_bytes": size, "seconds": round(time.perf_counter() - began, 1),
        **json.loads(found.stdout.splitlines()[-1]),
    }  # fmt: skip


def table(results: dict[str, Any]) -> str:
    """What was found, for the document."""
    lines = ["| blocks | weights in float32 | peak | seconds |", "|---|---|---|---|"]
    for row in results["runs"]:
        size, peak = row["source_bytes"] * 2 / 1e6, row["peak_bytes"] / 1e6
        lines.append(f"| {row['blocks']} | {size:,.0f} MB | {peak:,.0f} MB | {row['seconds']:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure every block count, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--megabytes", type=float, default=4, help="of one block in bfloat16")
    parser.add_argument("--method", default="gptq")
    parser.add_argument("--effort", default="fast")
    parser.add_argument("--folder", type=Path, help="where the checkpoints are made; a temporary one by default")
    parser.add_argument("--report", action="store_true", help="write the document from what is there")
    arguments = parser.parse_args()
    if not arguments.report:
        settings = {key: getattr(arguments, key) for key in ("megabytes", "method", "effort")}
        with tempfile.TemporaryDirectory(prefix="goldstick-search-", dir=arguments.folder) as folder:
            for blocks in arguments.blocks:
                block_bytes = int(arguments.megabytes * 1e6)
                found = run(blocks, block_bytes, arguments.method, arguments.effort, Path(folder))
                print(json.dumps(found), flush=True)
                known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
                others = known.get("runs", []) if settings.items() <= known.items() else []
                runs = [one for one in others if one["blocks"] != blocks] + [found]
                runs.sort(key=lambda one: int(one["blocks"]))
                RESULTS.write_text(json.dumps({**settings, "runs": runs}, indent=1) + "\n")
    text = table(json.loads(RESULTS.read_text()))
    print(text)
    head, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
