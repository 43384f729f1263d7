"""Time the Hessian's sums: the kernel of whole numbers against float64 products of the same numbers.

    python benchmarks/products.py [--tokens 16384] [--widths 768 3072 4096] [--repeats 9]

Both run in turn within one process, so a busy machine slows both; the ratio is the median of the pairs' ratios.
Multiply-adds are those on and above the diagonal.
"""

from __future__ import annotations

import argparse

import torch
from unpack import paired_medians

import goldstick.kernels.products_op
from goldstick.core.products import BITS, add_products

_TOGETHER = 2048  # tokens that an observer adds at a time


def main() -> None:
    """Print one line per width."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--widths", type=int, nargs="+", default=[768, 3072, 4096])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    if not goldstick.kernels.products_op.available:
        parser.error("the compiled kernels are not built")
    print(f"{options.tokens} tokens, {torch.get_num_threads()} threads")
    print(f"{'width':>6} {'kernel ms':>10} {'float64 ms':>11} {'ratio':>6} {'10⁹ multiply-adds/s':>20}")
    for width in options.widths:
        numbers = torch.randint(-(2**BITS), 2**BITS + 1, (options.tokens, width), dtype=torch.int16)
        sums = torch.zeros(width, width, dtype=torch.int64)

        def whole(numbers: torch.Tensor = numbers, sums: torch.Tensor = sums) -> None:
            for start in range(0, len(numbers), _TOGETHER):
                add_products(sums, numbers[start : start + _TOGETHER])

        def floats(numbers: torch.Tensor = numbers, sums: torch.Tensor = sums) -> None:
            for start in range(0, len(numbers), _TOGETHER):
                wide = numbers[start : start + _TOGETHER].double()
                for first in range(0, len(sums), 512):
                    sums[first : first + 512, first:] += (wide[:, first : first + 512].T @ wide[:, first:]).long()

        slow, fast, ratio = paired_medians(floats, whole, options.repeats)
        rate = options.tokens * width * (width + 1) / 2 / fast / 1e6
        print(f"{width:6d} {fast:10.1f} {slow:11.1f} {ratio:6.2f} {rate:20.1f}")


if __name__ == "__main__":
    main()
