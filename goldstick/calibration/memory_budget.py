"""Memory: how much is used, how much there is, and whether all batches may wait together in a block."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from goldstick.core.processes import local_count
from goldstick.errors import UsageError
from goldstick.structure.trace import tensors_in

#: What Python, torch and transformers take before any weight is read, measured, in bytes.
BASE_MEMORY = 600_000_000
#: Share of the free memory that a run takes without being told.
_SHARE = 0.7


def peak_memory() -> int:
    """The largest resident set of this process so far, in bytes.

    Not ``ru_maxrss``: Linux keeps that over ``exec``, so that a run would report the size of whoever started it.
    """
    return _counted("self/status", "VmHWM")


def require_memory(given: object, least: int) -> None:
    """Refuse a limit that a run cannot keep.

    Args:
        given: Bytes that the run may use, as the user says; ``None`` where nobody says anything.
        least: Forecast of what it holds at least, in a process that holds nothing else.

    Raises:
        UsageError: It is less than that, or no number of bytes.
    """
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, int | float) or not 1 <= given < math.inf:
        raise UsageError(f"The memory that a run may use (max_memory) is a number of bytes, 1 or more; not {given!r}.")
    needed = least + max(0, used_memory() - BASE_MEMORY)
    if given < needed:
        raise UsageError(
            f"This run cannot be held in {given:,.0f} bytes of memory: it takes {math.ceil(needed / 1e8) / 10} GB at "
            f"least. Give --max-memory {math.ceil(needed / 1e8) * 100}MB or more, or leave the option out."
        )


def default_budget() -> int:
    """What is used now and a good part of what is free, in bytes; of several processes on a machine each its part."""
    return used_memory() + int(_SHARE * _counted("meminfo", "MemAvailable")) // local_count()


def used_memory() -> int:
    """The resident set of this process now, in bytes."""
    return _counted("self/status", "VmRSS")


def _counted(file: str, field: str) -> int:
    """Bytes of a field of a file of the kernel's, whose lines are ``name: n kB``."""
    fields = dict(line.split(":", 1) for line in Path("/proc", file).read_text(encoding="utf-8").splitlines())
    return 1024 * int(fields[field].split()[0])


def fits_together(block: nn.Module, held: int, batches: int, budget: int, streams: int = 1) -> bool:
    """Whether the activations of all batches inside a block fit into a budget, beside what solving its layers takes.

    Args:
        block: The block, in memory.
        held: Bytes of one batch's :func:`activations`.
        batches: How many batches there are.
        budget: Bytes.
        streams: 2 where the float block runs beside, with activations and a statistic of its own.
    """
    widest = max((parameter.shape[-1] for parameter in block.parameters() if parameter.ndim > 1), default=0)
    weights = sum(parameter.nbytes for parameter in block.parameters())
    solving = streams * (4 * 8 * widest**2 + weights)
    return used_memory() + solving + streams * batches * held <= budget


def activations(block: nn.Module, run: Callable[[], Tensor]) -> int:
    """Bytes of everything that the layers of a block are given and give for one batch, the largest; it runs once."""
    held: dict[int, Tensor] = {}

    def note(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        for tensor in tensors_in((args, output)):
            held[tensor.data_ptr()] = tensor

    layers = [module for module in block.modules() if not list(module.children())]
    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return sum(tensor.nbytes for tensor in held.values())
