"""FP4 beside int4 of the same groups, and FP8 beside a plain read of as many bytes, in pairs.

    python benchmarks/float_kernels.py [--shapes 4096x4096] [--tokens 1 16 128] [--seconds 4] [--threads 2]
    OMP_NUM_THREADS=1 python benchmarks/float_kernels.py --threads 1 --clock processor

For every instruction set of the processor, from AVX2 on. A kernel and what it is compared with run one right after
the other, each twice after a pause, and the second run counts; the ratio is the median of the pairs', the figure
beside it that of the shortest times. Weights take turns, as in ``benchmarks/kernels.py``, so that no cache holds them.
A plain read is that of a loop which is given as many bytes as the weight has, others each time. Layers are called from
C++, without Python's checks; FP8 with its table and scales at hand. Writes ``benchmarks/results/float-kernels.json``,
or ``--out``.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.kernels import PAUSE, Call, Clock, copies, goldstick_kernel, in_turn, reading_alike, timing_options
from goldstick.core.bitpack import pack_rows
from goldstick.core.element import ELEMENTS
from goldstick.jobs.bench.stopwatch import beyond_caches
from goldstick.jobs.save.records import environment
from goldstick.kernels.cpu import _C

RESULTS = Path(__file__).resolve().parent / "results" / "float-kernels.json"
Row = dict[str, float | int | str]

FP4 = [("e2m1", 16), ("e2m1", 32), ("iq4", 32)]
FP8 = [("e4m3", 0), ("e4m3", 128), ("e4m3", 32), ("e5m2", 0)]
"""Elements and groups of columns; 0: one scale a row."""


def float_kernel(rows: int, columns: int, element: str, group_size: int) -> tuple[Call, int]:
    """What ``cpu-float`` multiplies a few tokens by, and the bytes of codes and scales."""
    width, bits, threads = group_size or columns, ELEMENTS[element].bits, torch.get_num_threads()
    codes = ELEMENTS[element].round(torch.randn(rows, columns) * ELEMENTS[element].largest / 4)
    packed, step = pack_rows(codes, bits), torch.rand(rows, columns // width)
    table, weight_bytes = ELEMENTS[element].table(), packed.nbytes + step.nbytes

    def call(packed: torch.Tensor) -> Call:
        def run(x: torch.Tensor) -> object:
            y = torch.empty(len(x), rows)
            _C.multiply_float_codes(packed, step, table, x, y, bits, width, element, threads)
            return y

        return run

    return in_turn([call(packed.clone()) for _ in copies(weight_bytes)]), weight_bytes


def seconds_of(call: Callable[[], object], clock: Clock) -> float:
    """How long the second of two calls takes, after a pause."""
    time.sleep(PAUSE)
    call()
    start = clock()
    call()
    return clock() - start


def paired(
    one: Callable[[], object], other: Callable[[], object], seconds: float, clock: Clock
) -> tuple[list[float], ...]:
    """Times of both, run in turn for so long, and five times at least."""
    times: tuple[list[float], list[float]] = ([], [])
    started = time.perf_counter()
    while len(times[0]) < 6 or time.perf_counter() - started < seconds:
        times[0].append(seconds_of(one, clock))
        times[1].append(seconds_of(other, clock))
    return times[0][1:], times[1][1:]  # the first warms up


def summary(first: list[float], second: list[float]) -> Row:
    """Milliseconds of the first, and how many times as long it takes as the second."""
    ratio = statistics.median(a / b for a, b in zip(first, second, strict=True))
    return {
        "ms": round(statistics.median(first) * 1e3, 3),
        "times_as_long": round(ratio, 3),
        "shortest": round(min(first) / min(second), 3),
        "pairs": len(first),
    }


def measure(rows: int, columns: int, tokens: list[int], seconds: float, clock: Clock) -> Iterator[Row]:
    """A row for each pair."""
    threads = torch.get_num_threads()
    words = torch.ones(1, beyond_caches() // 4, dtype=torch.int32)
    order = ("scalar", "avx2", "avx512", "amx")
    sets = [isa for isa in order[1:] if order.index(isa) <= order.index(_C.isa())]
    for element, group_size in FP4:
        for interleaved in (True, False):
            kernels = [
                goldstick_kernel(
                    rows, columns, 4, group_size, None, interleaved=interleaved, from_cpp=True, element=name
                )
                for name in (element, "int")
            ]
            for isa in sets:
                os.environ["GOLDSTICK_ISA"] = isa
                for count in tokens:
                    x = torch.randn(count, columns)
                    calls = [lambda kernel=kernel: kernel.call(x) for kernel in kernels]  # type: ignore[misc]  # noqa: B023
                    found = summary(*paired(calls[0], calls[1], seconds, clock))
                    layout = "interleaved" if interleaved else "as loaded"
                    yield {
                        "kernel": f"{element} g{group_size}, {layout}",
                        "isa": isa,
                        "tokens": count,
                        "beside": "int4",
                        **found,
                    }
    for element, group_size in FP8:
        call, weight_bytes = float_kernel(rows, columns, element, group_size)
        read = reading_alike(words, weight_bytes, threads)
        for isa in sets:
            os.environ["GOLDSTICK_ISA"] = isa
            x = torch.randn(1, columns)
            found = summary(*paired(lambda: call(x), read, seconds, clock))  # noqa: B023
            name = f"{element} {f'g{group_size}' if group_size else 'channel'}"
            yield {"kernel": name, "isa": isa, "tokens": 1, "beside": "a plain read", **found}


def main() -> None:
    """Measure, print, write."""
    options, clock = timing_options(__doc__, shapes=["4096x4096"], tokens=[1, 16, 128], seconds=2.0, results=RESULTS)
    best, shapes = _C.isa(), {}
    for shape in options.shapes:
        rows, columns = (int(size) for size in shape.split("x"))
        shapes[shape] = []
        for row in measure(rows, columns, options.tokens, options.seconds, clock):
            shapes[shape].append(row)
            line = "{kernel:28} {isa:7} {tokens:4} tokens {ms:9.3f} ms, {times_as_long:6.3f} times as long as {beside}"
            print(line.format(**row) + " ({shortest:.3f})".format(**row), flush=True)
    settings = {"threads": options.threads, "seconds": options.seconds, "clock": options.clock, "isa": best}
    result = {"settings": settings, "shapes": shapes, "environment": environment()}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
