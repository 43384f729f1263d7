"""What torchrun has said to this process: its number, how many there are; and the group that they make."""

from __future__ import annotations

import atexit
import os
import re
from datetime import timedelta
from importlib import import_module

import torch
import torch.distributed as distributed

from goldstick.errors import RankError, UsageError

#: The first process may have to write and measure for long while the others wait.
_PATIENCE = timedelta(days=7)
#: While a block is calibrated nobody waits for long: a rank that is silent for that time is lost.
_SILENCE = "GOLDSTICK_RANK_TIMEOUT"
_SILENT_SECONDS = 3600
_NUMBER = re.compile("[0-9]{1,9}")
_REMEDY = "Start all processes by torchrun, or unset RANK and WORLD_SIZE to run alone."


def rank() -> int:
    """The number of this process among those that torchrun started; 0 where it started none.

    Raises:
        UsageError: The variables by which torchrun says it mean nothing; so do those that follow.
    """
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return _told("RANK", 0) if process_count() > 1 else 0


def local_rank() -> int:
    """The number of this process among those on this machine."""
    return _told("LOCAL_RANK", 0) if os.environ.get("LOCAL_RANK") else rank()


def local_count() -> int:
    """How many processes torchrun started on this machine, or 1."""
    if process_count() == 1:
        return 1
    return _told("LOCAL_WORLD_SIZE", 1) if os.environ.get("LOCAL_WORLD_SIZE") else process_count()


def process_count() -> int:
    """How many processes torchrun started, or 1."""
    if not distributed.is_available():
        return 1
    if distributed.is_initialized():
        return distributed.get_world_size()
    if not os.environ.get("RANK") or not os.environ.get("WORLD_SIZE"):
        return 1
    number, count = _told("RANK", 0), _told("WORLD_SIZE", 1)
    if count == 1:
        return 1
    if number >= count:
        raise UsageError(f"RANK is {number} and WORLD_SIZE {count}: processes count from 0. {_REMEDY}")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise UsageError(
                f"RANK={number} and WORLD_SIZE={count} say that this is one of {count} processes, and {name}, where "
                f"they meet, is not set. {_REMEDY}"
            )
    _told("MASTER_PORT", 1)
    return count


def _told(name: str, least: int) -> int:
    value = os.environ[name]
    if not _NUMBER.fullmatch(value) or int(value) < least:
        raise UsageError(f"{name} is {value!r}, which is no number from {least} on. {_REMEDY}")
    return int(value)


def told_by_first(text: str) -> str:
    """What the first process says when it comes here, on all of them; alone, what it is given.

    Raises:
        RankError: The first has ended.
    """
    if process_count() == 1:
        return text
    join(torch.device("cpu"))
    box = [text]
    try:
        distributed.broadcast_object_list(box, src=0)
    except RuntimeError as error:
        raise RankError(f"Another of the {process_count()} processes of this run has ended.") from error
    return box[0]


def join(device: torch.device) -> None:
    """Become one of the process group, once.

    Args:
        device: Where tensors that are exchanged may lie, beside the processor.
    """
    if not distributed.is_initialized():
        # What lies on a device goes from there, everything else through the processors.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" or torch.cuda.is_available() else "gloo"
        # Its functions take the group of all as a default, which would hold it for ever, were they imported (by an
        # optimizer) after there is one.
        import_module("torch.distributed.nn.functional")
        distributed.init_process_group(backend, timeout=_PATIENCE)
        atexit.register(_leave)


def _leave() -> None:
    """End the group's threads before the interpreter ends: one that drops a tensor after it aborts the process."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def longest_silence() -> timedelta:
    """For how long a process may be silent before it counts as lost: ``GOLDSTICK_RANK_TIMEOUT`` seconds, or an hour."""
    return timedelta(seconds=_told(_SILENCE, 1) if os.environ.get(_SILENCE) else _SILENT_SECONDS)
