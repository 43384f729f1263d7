"""One of several processes that train: ``python -m tests.support.training_worker FOLDER``, as torchrun starts them."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from pathlib import Path

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from goldstick.core.training import TrainingOptions
from goldstick.training import TrainingTask, train

STEPS = 7

#: The group of all, once there is one.
GROUPS: list[weakref.ref[distributed.ProcessGroup]] = []


def network() -> nn.Module:
    """The same in every process, or, to be mended by the first, not."""
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3)).double()


def batches(epoch: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of 8, 8 and 5 rows, drawn from torch's generator."""
    return [(torch.randn(rows, 6, dtype=torch.float64), torch.randint(3, (rows,))) for rows in (8, 8, 5)]


def work(folder: Path) -> None:
    """Train twice, the second time with dropout, and leave the networks and the record of the first."""
    rank = os.environ.get("RANK", "0")
    model, noisy = network(), network()
    seen: list[int] = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(len(batch[0]))
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def with_dropout(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(nn.functional.dropout(model(batch[0])), batch[1])

    options = TrainingOptions(steps=STEPS, rate=0.05)
    task = TrainingTask(batches=batches, loss=loss, validate=lambda model: len(seen), directory=folder / "state")
    record = train(model, task, options)
    train(noisy, TrainingTask(batches=batches, loss=with_dropout), options)
    found = {"model": model.state_dict(), "noisy": noisy.state_dict(), "record": vars(record), "seen": seen}
    torch.save(found, folder / f"{rank}.pt")


def leave() -> None:
    """At the very end: nothing holds the group any more, whose threads could outlive the interpreter."""
    if GROUPS and GROUPS[0]() is not None:
        os.write(2, b"the group of processes is still there\n")
        os._exit(3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    atexit.register(leave)
    work(Path(sys.argv[1]))
    GROUPS.append(weakref.ref(distributed.group.WORLD))
