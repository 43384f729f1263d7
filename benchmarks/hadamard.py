"""What turning inputs takes: Hadamard transforms beside the layers that they belong to, and beside copying.

    python -m benchmarks.hadamard [--shapes 4096x11008 4096x16384] [--tokens 1 16 128] [--seconds 1] [--threads 2]
    OMP_NUM_THREADS=1 python -m benchmarks.hadamard --threads 1 --clock processor

For every instruction set of the processor. A transform of inputs [tokens, columns] (blocks of the largest power of two
that divides them), the product of a layer of 4-bit weights in groups of 128 with 8-bit inputs, interleaved and in no
cache, and copying the inputs, which moves the bytes that a transform cannot do without (8 of each float32), run in
turn; ratios are medians of pairs. Writes ``benchmarks/results/hadamard.json``, or ``--out``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.float_kernels import Row, paired, summary
from benchmarks.kernels import Clock, goldstick_kernel, timing_options
from goldstick.core.input_rotation import plain_transform, transform_size
from goldstick.jobs.save.records import environment
from goldstick.kernels.cpu import _C
from goldstick.kernels.hadamard_op import hadamard

RESULTS = Path(__file__).resolve().parent / "results" / "hadamard.json"
ORDER = ("scalar", "avx2", "avx512", "amx")


def measure(rows: int, columns: int, tokens: list[int], seconds: float, clock: Clock) -> Iterator[Row]:
    """A row for each pair: beside the layer, beside a copy, beside plain torch."""
    layer = goldstick_kernel(rows, columns, 4, 128, "int8-token", interleaved=True, from_cpp=True)
    size = transform_size(columns)
    for isa in ORDER[: 1 + min(ORDER.index(_C.isa()), ORDER.index("avx512"))]:
        os.environ["GOLDSTICK_ISA"] = isa
        for count in tokens:
            x = torch.randn(count, columns)
            y = torch.empty_like(x)
            others = {
                "the layer": lambda x=x: layer.call(x),
                "a copy": lambda x=x, y=y: y.copy_(x),
                "plain torch": lambda x=x: plain_transform(x, size),
            }
            for beside, other in others.items():
                found = summary(*paired(lambda x=x: hadamard(x, size), other, seconds, clock))
                yield {"isa": isa, "tokens": count, "size": size, "beside": beside, **found}


def main() -> None:
    """Measure, print, write."""
    options, clock = timing_options(
        __doc__, shapes=["4096x11008", "4096x16384"], tokens=[1, 16, 128], seconds=1.0, results=RESULTS
    )
    shapes: dict[str, list[Row]] = {}
    for shape in options.shapes:
        rows, columns = (int(size) for size in shape.split("x"))
        shapes[shape] = []
        for row in measure(rows, columns, options.tokens, options.seconds, clock):
            shapes[shape].append(row)
            line = "{isa:7} {tokens:4} tokens, blocks of {size} {ms:9.4f} ms, {times_as_long:6.3f} times {beside}"
            print(f"{shape:12} {line.format(**row)}", flush=True)
    kept = {"threads": options.threads, "clock": options.clock, "shapes": shapes, "environment": environment()}
    options.out.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
