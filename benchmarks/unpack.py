"""Time the compiled dequantization against the reference: paired, alternating, medians.

    python benchmarks/unpack.py [--rows 4096] [--columns 4096] [--repeats 15] [--threads 2] [--isa scalar]

Each row is one layer of 4096 × 4096 in groups of 128. Both backends run in turn within one process, so a busy
machine slows both; the ratio is the median of the pairs' ratios. ``linear`` is one token, M = 1.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

from goldstick.core.bitpack import pack_rows
from goldstick.kernels import WeightSpec
from goldstick.kernels.cpu import CpuBackend
from goldstick.kernels.reference import ReferenceBackend


def milliseconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def paired_medians(
    first: Callable[[], object], second: Callable[[], object], repeats: int
) -> tuple[float, float, float]:
    """Medians of both calls in milliseconds, run in turn, and the median of first / second."""
    first(), second()
    pairs = [(milliseconds(first), milliseconds(second)) for _ in range(repeats)]
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )


def main() -> None:
    """Print one line per number of bits and dtype."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--isa", choices=["scalar", "avx2"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.isa:
        os.environ["GOLDSTICK_ISA"] = options.isa
    ours, reference = CpuBackend(), ReferenceBackend()
    print(f"[{options.rows} × {options.columns}], groups of 128, {options.threads} threads; milliseconds")
    print(f"{'bits':>4} {'dtype':>9} {'what':>10} {'reference':>10} {'cpu':>8} {'ratio':>7}")
    for dtype in (torch.float32, torch.bfloat16):
        for bits in (2, 3, 4, 8):
            spec = WeightSpec(
                bits=bits,
                group_size=128,
                in_features=options.columns,
                out_features=options.rows,
                has_zero=True,
                dtype=dtype,
            )
            codes = torch.randint(0, 2**bits, (options.rows, options.columns), dtype=torch.uint8)
            packed = pack_rows(codes, bits)
            scale = torch.rand(options.rows, spec.groups).to(dtype)
            weight = (packed, scale, (scale * 2**bits), spec)
            linear = (torch.randn(1, options.columns).to(dtype), *weight[:3], None, spec)
            for what, arguments in (("dequantize", weight), ("linear", linear)):
                theirs, mine, ratio = paired_medians(
                    lambda what=what, arguments=arguments: getattr(reference, what)(*arguments),
                    lambda what=what, arguments=arguments: getattr(ours, what)(*arguments),
                    options.repeats,
                )
                name = str(dtype).removeprefix("torch.")
                print(f"{bits:4} {name:>9} {what:>10} {theirs:10.1f} {mine:8.1f} {ratio:6.1f}×", flush=True)


if __name__ == "__main__":
    main()
