"""What a stopped training goes on from: everything that changes while it runs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from goldstick.core.whole_file import whole_file
from goldstick.errors import OutputError, TrainingError


@dataclass(kw_only=True)
class TrainingState:
    """How far a training is.

    Attributes:
        step: Optimizer steps taken.
        epoch: Epochs finished.
        losses: Mean training loss of each epoch.
        scores: What the validation gave after each epoch.
        best: The network's tensors in the epoch that validated best; ``None`` without a validation.
        stopped: Whether there is nothing more to do.
    """

    step: int = 0
    epoch: int = 0
    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    best: dict[str, Any] | None = None
    stopped: bool = False


def digest_of(model: nn.Module) -> str:
    """A sha256 of a network as it is: its modules' kinds, and its parameters' and buffers' names and numbers.

    Buffers that are not stored count, such as the places to which a cut network's channels belong. Numbers are read
    one tensor at a time, in the order of their indices, wherever they lie in memory.
    """
    digest = hashlib.sha256()
    for name, module in model.named_modules():
        digest.update(repr((name, type(module).__qualname__)).encode())
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(repr((name, str(value.dtype), tuple(value.shape), value.requires_grad)).encode())
        # Bytes, since numpy does not know every dtype.
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_state(
    path: Path, identity: str, state: TrainingState, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write a checkpoint, which appears whole or not at all.

    Raises:
        OutputError: It cannot be written.
    """
    content = {
        "identity": identity,
        "state": vars(state),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, replace=True) as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        raise OutputError(f"The training's checkpoint {path} cannot be written: {error}") from error


def load_state(path: Path, identity: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Go on from a checkpoint: the model, the optimizer and torch's generator become what they were.

    Raises:
        TrainingError: It is of another training, or damaged.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and torch raise whatever they stumble over
        raise TrainingError(f"The training's checkpoint {path} is damaged: {error} Delete it to begin anew.") from error
    if content.get("identity") != identity:
        raise TrainingError(
            f"The checkpoint {path} is of a training with another network or other options; give another directory, or "
            "delete it to begin anew."
        )
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    torch.set_rng_state(content["random"])
    return TrainingState(**content["state"])
