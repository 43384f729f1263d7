"""Time what GPTQ does with one layer on a CUDA device: ``python -m benchmarks.gpu_solve``.

Weights are random, in bfloat16, the scheme ``w4a16-g128``; Hessians are those of 8,192 random inputs. Prints, for each
shape, milliseconds of the range search, of the loop over columns, and of GPTQ in all, by the Triton kernels; then of
the first two in plain torch, which finds the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest.mock import patch

import torch

from goldstick.algorithms import column_loop, range_error
from goldstick.algorithms.gptq import solve_gptq
from goldstick.algorithms.hessian_factor import inverse_factor
from goldstick.algorithms.ranges import quantize_with_search
from goldstick.core.compiled import compiled
from goldstick.core.scheme import Scheme
from goldstick.kernels import ops as _ops  # noqa: F401  (declares the kernels)

SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336), (2048, 7168), (7168, 2048))
INPUTS = 8192


def milliseconds(run: Callable[[], object], times: int = 3) -> float:
    """The mean of some runs behind a first one."""
    run()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        run()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began) / times


def measure(rows: int, columns: int) -> list[float]:
    """Range search, columns, GPTQ; range search and columns in plain torch."""
    device, grid = torch.device("cuda"), Scheme.parse("w4a16-g128").weight
    weight = torch.randn(rows, columns, device=device, dtype=torch.bfloat16)
    inputs = torch.randn(INPUTS, columns, device=device)
    hessian = (inputs.T @ inputs).double()
    order = torch.arange(columns, device=device)
    factor = inverse_factor(hessian, 0.01 * float(hessian.diagonal().mean()), order)
    assert factor is not None  # a random Hessian of full rank
    ranges = quantize_with_search(weight, grid, "mse")

    def parts(times: int) -> list[float]:
        return [
            milliseconds(lambda: quantize_with_search(weight, grid, "mse"), times),
            milliseconds(lambda: column_loop.solve_columns(weight, factor, order, ranges), times),
        ]

    found = [*parts(3), milliseconds(lambda: solve_gptq(weight, hessian, grid), 1)]
    with patch.object(column_loop, "compiled", lambda *_: None), patch.object(range_error, "compiled", lambda *_: None):
        return found + parts(1)


def main() -> None:
    """Print a row for each shape."""
    if not torch.cuda.is_available() or compiled("gptq_block", torch.device("cuda")) is None:
        raise SystemExit("This times Triton kernels on a CUDA device of capability 8.0 or newer; there is none here.")
    print("outputs x inputs: range search, columns, GPTQ; in plain torch: range search, columns (ms)")
    for rows, columns in SHAPES:
        print(f"{rows} x {columns}: " + ", ".join(f"{value:.0f}" for value in measure(rows, columns)), flush=True)


if __name__ == "__main__":
    main()
