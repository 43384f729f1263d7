"""How finely the integer kernels of the CPU round what layers with float inputs are given: to 16 bits, or to 8."""

from __future__ import annotations

from goldstick.errors import UsageError

INPUT_BITS = (16, 8)
_GROUPED = {16: "", 8: "int8-group"}
_chosen = 16


def set_input_bits(bits: int) -> None:
    """Let layers with float inputs round them to so many bits from now on, in this process.

    The integer kernels of the CPU multiply whole numbers: q = round(x / s) with s = max|x| / 32639 of 16 bits, which is
    as good as float (outputs are off by a normalized squared error near 1e-9), or max|x| / 127 of 8, over each group of
    columns of a token, of 128 at most. 8 bits are llama.cpp's way: a little is lost, and prompts are read 1.4 to
    1.5 times as fast. Layers whose scheme rounds inputs, other backends and other devices take no note of it, and
    nothing is quantized with 8.

    Args:
        bits: 16, which is where a process begins, or 8.

    Raises:
        UsageError: It is neither.
    """
    global _chosen
    if bits not in INPUT_BITS:
        raise UsageError(f"Inputs are rounded to {' or '.join(map(str, INPUT_BITS))} bits, not to {bits!r}.")
    _chosen = bits


def input_bits() -> int:
    """What was set last."""
    return _chosen


def fewer_bits() -> int | None:
    """The same, where it is fewer than a process begins with: what records and keys of results are told."""
    return None if _chosen == INPUT_BITS[0] else _chosen


def refuse_fewer_bits() -> None:
    """Raise UsageError where decisions, or proofs in other processes, would be made by inputs of 8 bits."""
    if fewer_bits() is not None:
        raise UsageError(
            f"Inputs are rounded to {_chosen} bits in this process, by which nothing is quantized or proven: call "
            f"goldstick.set_input_bits({INPUT_BITS[0]}) before."
        )


def grouped_rounding() -> str:
    """What C++ calls the rounding of inputs that no scheme rounds."""
    return _GROUPED[_chosen]
