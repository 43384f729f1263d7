"""Training in several processes, as torchrun starts them: each takes its rows of every batch, gradients are averaged.

All processes draw the same batches from the same seed, so that a batch is the one that a single process would have
taken. What is written is written by the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from goldstick.core.processes import join, process_count
from goldstick.structure.trace import map_tensors, samples_in


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
        join(first.device)
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
