"""How a command uses the processors: its threads, and the kernels that were compiled for them."""

from __future__ import annotations

import os

import click

#: How many threads may be asked for. OpenMP takes thousands that wait for few processors and then ends the program by
#: a segmentation fault.
THREADS = click.IntRange(1, max(64, 16 * (os.cpu_count() or 1)))


def use_processors(threads: int | None = None) -> None:
    """Take so many threads, or as many as torch has by default.

    Raises:
        UsageError: GOLDSTICK_ISA asks for what this processor does not have.
    """
    import torch

    from goldstick.kernels.cpu import chosen_isa

    if threads is not None:
        torch.set_num_threads(threads)
    chosen_isa()
