"""Time the compiled range search against plain torch: paired, alternating, medians.

    python benchmarks/ranges.py [--sizes 1024 4096] [--repeats 3] [--threads 2] [--isa scalar]

Each row is one square matrix, rounded to 4 bits in groups of 128 with the search ``mse`` or ``imatrix``, all of
``quantize_with_search``. Both ways run in turn within one process, so a busy machine slows both; the ratio is the
median of the pairs' ratios. Both find the same codes, which is checked. Writes ``benchmarks/results/ranges.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch

from goldstick.algorithms import range_error
from goldstick.algorithms.ranges import RangeSearch, quantize_with_search
from goldstick.core.grid import Grid
from goldstick.core.qtensor import QuantizedTensor
from goldstick.jobs.save.records import environment
from goldstick.kernels import ranges_op

RESULTS = Path(__file__).resolve().parent / "results" / "ranges.json"


def timed(call: Callable[[], QuantizedTensor]) -> tuple[float, QuantizedTensor]:
    """Wall time of one call in milliseconds, and its result."""
    start = time.perf_counter()
    result = call()
    return (time.perf_counter() - start) * 1e3, result


def compare(size: int, search: RangeSearch, repeats: int) -> dict[str, float | str]:
    """Medians of both ways in milliseconds, and of their ratio."""
    weight = torch.randn(size, size)
    importance = torch.rand(size) if search == "imatrix" else None
    grid = Grid(bits=4, granularity="group", group_size=128)

    def searched() -> QuantizedTensor:
        return quantize_with_search(weight, grid, search, importance)

    searched()
    pairs = []
    for _ in range(repeats):
        with mock.patch.object(range_error, "_fused", lambda device: None):
            plain_time, plain = timed(searched)
        fused_time, fused = timed(searched)
        if not (torch.equal(plain.codes, fused.codes) and torch.equal(plain.scale, fused.scale)):
            raise SystemExit("the two ways disagree")
        pairs.append((plain_time, fused_time))
    return {
        "size": size,
        "search": search,
        "torch_ms": round(statistics.median(plain for plain, _ in pairs), 1),
        "fused_ms": round(statistics.median(fused for _, fused in pairs), 1),
        "ratio": round(statistics.median(plain / fused for plain, fused in pairs), 1),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--isa", choices=["scalar", "avx2"])
    options = parser.parse_args()
    if not ranges_op.available:
        raise SystemExit("the compiled module has no search_ranges; install goldstick with a C++ compiler")
    torch.set_num_threads(options.threads)
    if options.isa:
        os.environ["GOLDSTICK_ISA"] = options.isa
    print(f"4 bits, groups of 128, {options.threads} threads; milliseconds")
    print(f"{'size':>6} {'search':>8} {'torch':>9} {'fused':>8} {'ratio':>7}")
    searches: list[RangeSearch] = ["mse", "imatrix"]
    rows = []
    for size in options.sizes:
        for search in searches:
            row = compare(size, search, options.repeats)
            rows.append(row)
            print("{size:6} {search:>8} {torch_ms:9.1f} {fused_ms:8.1f} {ratio:6.1f}×".format(**row), flush=True)
    settings = {"threads": options.threads, "isa": options.isa or "best", "repeats": options.repeats}
    RESULTS.parent.mkdir(exist_ok=True)
    result = {"settings": settings, "rows": rows, "environment": environment()}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
