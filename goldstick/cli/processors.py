"""How a command uses the processors: its threads, the kernels that were compiled for them, and how these round."""

from __future__ import annotations

import os

import click

#: How many threads may be asked for. OpenMP takes thousands that wait for few processors and then ends the program by
#: a segmentation fault.
THREADS = click.IntRange(1, max(64, 16 * (os.cpu_count() or 1)))

INPUT_BITS = click.option(
    "--input-bits",
    type=click.Choice(["16", "8"]),
    default="16",
    show_default=True,
    help="Bits that the CPU's integer kernels round float inputs of compressed layers to; 8 loses a little, and reads "
    "prompts faster.",
)


def use_processors(threads: int | None = None, input_bits: str = "16") -> None:
    """Take so many threads, or as many as torch has by default, and round inputs to so many bits.

    Raises:
        UsageError: GOLDSTICK_ISA asks for what this processor does not have.
    """
    import torch

    from goldstick.kernels.cpu import chosen_isa
    from goldstick.kernels.input_bits import set_input_bits

    if threads is not None:
        torch.set_num_threads(threads)
    chosen_isa()
    set_input_bits(int(input_bits))


def echo_input_bits() -> None:
    """Say that inputs were rounded to fewer bits than they usually are, where they were."""
    for bits in input_bits_record().values():
        click.echo(f"inputs of compressed layers were rounded to {bits} bits")


def input_bits_record() -> dict[str, int]:
    """The same for JSON: ``input_bits``, or nothing."""
    from goldstick.kernels.input_bits import fewer_bits

    return {"input_bits": bits} if (bits := fewer_bits()) else {}
