"""The memory of the device that blocks run on, and what a pass through a block holds of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from goldstick.core.processes import local_count
from goldstick.errors import UsageError

_SHARE = 0.85
"""Of what is free; the rest is for the allocator's gaps and the products' own scratch."""
SHARE_OF_STATES = 0.25


def held_on_device(
    module: nn.Module, run: Callable[[], Tensor], device: torch.device, weights: Callable[[], int] = lambda: 0
) -> int:
    """The most bytes that a pass holds where a layer of a block begins, and batches may wait; it runs once.

    Args:
        module: The block.
        run: The pass.
        device: The device.
        weights: Bytes there of layers that come and go, which are none of the pass's.
    """
    before, most = torch.cuda.memory_allocated(device) - weights(), 0

    def note(*_: object) -> None:
        nonlocal most
        most = max(most, torch.cuda.memory_allocated(device) - weights() - before)

    layers = [layer for layer in module.modules() if not list(layer.children())]
    handles = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return most


def fits_on_device(module: nn.Module, held: int, batches: int, device: torch.device, streams: int = 1) -> bool:
    """Whether the passes of all batches may wait together in a block, beside what solving its layers takes.

    Args:
        module: The block, on the device.
        held: Bytes of one pass, from :func:`held_on_device`.
        batches: How many batches there are.
        device: The device.
        streams: 2 where the float block runs beside.
    """
    widest = max((parameter.shape[-1] for parameter in module.parameters() if parameter.ndim > 1), default=0)
    largest = max((parameter.nbytes for parameter in module.parameters()), default=0)
    matrix = max((parameter[(0,) * (parameter.ndim - 2)].nbytes for parameter in module.parameters()), default=0)
    solving = streams * 4 * 8 * widest**2 + 8 * matrix + largest  # experts are solved one by one, their codes kept
    return solving + streams * batches * held <= _SHARE * (free_on_device(device) or 0)


def free_on_device(device: torch.device) -> int | None:
    """Bytes of a device that a process may take; ``None`` where that is not asked, as of the processor."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    processes = -(-local_count() // max(1, torch.cuda.device_count()))  # on this device
    return free // processes


def room_for_states(size: int, device: torch.device) -> bool:
    """Whether hidden states of so many bytes may stay on a device from one block to the next.

    What a block is given and what it gives may take a quarter of what is free; the rest is for the block's own work.
    """
    free = free_on_device(device)
    return free is not None and 2 * size <= SHARE_OF_STATES * free


def room_for_weights(held: int, device: torch.device, share: float) -> int | None:
    """Bytes that a device has for the weights of a block; ``None`` where it has enough for the ``held`` bytes of it.

    Args:
        held: Bytes of the weights.
        device: The device.
        share: Of what is free, for weights; the rest is for batches, and for what solving takes.
    """
    free = free_on_device(device)
    room = None if free is None else int(share * free)
    return room if room is not None and held > room else None


@contextmanager
def naming_full_devices() -> Iterator[None]:
    """Say what to do where the memory of a device does not suffice.

    Raises:
        UsageError: A device had no more memory.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise UsageError(
            f"The device has no memory left for this run: {str(error).splitlines()[0]} Free what other programs hold "
            "of it, give shorter samples (calibration: {seq_len: …}), or use --device cpu. On the device --resume goes "
            "on after the last block in the journal."
        ) from error
