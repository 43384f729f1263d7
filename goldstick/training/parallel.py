"""Training in several processes, as torchrun starts them: each takes its rows of every batch, gradients are averaged.

All processes draw the same batches from the same seed, so that a batch is the one that a single process would have
taken. What is written is written by the first of them.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from goldstick.errors import UsageError
from goldstick.structure.trace import map_tensors, samples_in

#: The first process may have to write and measure for long while the others wait.
_PATIENCE = timedelta(days=7)
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


def refuse_idle_processes(*, trains: bool) -> None:
    """Refuse several processes where all but the first would only wait.

    Raises:
        UsageError: There are several, and nothing is trained; their variables may be left from another launcher.
    """
    count = process_count()
    if count > 1 and not trains:
        raise UsageError(
            f"WORLD_SIZE={count} and RANK={rank()} say that this is one of {count} processes, and no stage of this "
            f"recipe trains, which is what several processes are for. {_REMEDY}"
        )


def _told(name: str, least: int) -> int:
    value = os.environ[name]
    if not _NUMBER.fullmatch(value) or int(value) < least:
        raise UsageError(f"{name} is {value!r}, which is no number from {least} on. {_REMEDY}")
    return int(value)


def wait_for_all() -> None:
    """Go on when every process has come here."""
    if process_count() > 1:
        _join(torch.device("cpu"))
        distributed.barrier()


def _join(device: torch.device) -> None:
    if not distributed.is_initialized():
        # Gradients go where they lie, everything else through the processors.
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


@dataclass(frozen=True)
class Workers:
    """The processes that train one model.

    Attributes:
        rank: The number of this one.
        count: How many there are.
    """

    rank: int
    count: int

    @classmethod
    def of(cls, model: nn.Module) -> Workers:
        """Those that torchrun started, which are then of one mind about the model's parameters and buffers."""
        count = process_count()
        if count == 1:
            return cls(0, 1)
        first = next(model.parameters())
        _join(first.device)
        with torch.no_grad():
            for value in [*model.parameters(), *model.buffers()]:
                distributed.broadcast(value.detach(), 0)
        return cls(distributed.get_rank(), count)

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def rows_of(self, batch: Any) -> tuple[Any, float]:
        """This process's rows of a batch, and the share that they are of it; the first tensor says how many there are.

        Processes beyond the number of rows get the first row, which counts for nothing.
        """
        if self.count == 1:
            return batch, 1.0
        total = samples_in(batch)
        mine = torch.arange(total).tensor_split(self.count)[self.rank].tolist()
        start, end = (mine[0], mine[-1] + 1) if mine else (0, 1)

        def cut(tensor: Tensor) -> Tensor:
            return tensor[start:end] if tensor.ndim and tensor.shape[0] == total else tensor

        return map_tensors(batch, cut), len(mine) / total if total else 1 / self.count

    def total(self, value: float) -> float:
        """The sum of a number over all processes."""
        if self.count == 1:
            return value
        found = torch.tensor([value], dtype=torch.float64)
        distributed.all_reduce(found)
        return float(found)

    def of_the_first(self, value: float) -> float:
        """The number that the first process has."""
        return self.total(value if self.rank == 0 else 0.0)

    def add_gradients(self, parameters: Sequence[nn.Parameter], share: float) -> None:
        """Give every process the sum of all gradients, each times its share; none stays none where nobody has one."""
        if self.count == 1:
            return
        for parameter in parameters:
            there = torch.tensor([parameter.grad is not None], dtype=torch.float64, device=parameter.device)
            distributed.all_reduce(there)
            if not there:
                continue
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach() * share
            distributed.all_reduce(gradient)
            parameter.grad = gradient

    def draw_alike(self) -> None:
        """Let torch's generator go on as in the first process: rows that differ in number draw differently."""
        if self.count > 1:
            state = torch.get_rng_state()
            distributed.broadcast(state, 0)
            torch.set_rng_state(state)

    @torch.no_grad()
    def average_buffers(self, model: nn.Module) -> None:
        """Give every process the mean of the float buffers, such as running statistics, that each has made of its rows.

        Others are those of the first process.
        """
        if self.count > 1:
            for buffer in model.buffers():
                if buffer.is_floating_point():
                    distributed.all_reduce(buffer)
                    buffer /= self.count
                else:
                    distributed.broadcast(buffer, 0)
