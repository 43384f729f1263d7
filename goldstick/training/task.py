"""TrainingTask: the data and the loss a network is trained with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.errors import UsageError

Anneal = Callable[[float], None]

#: The label that cross entropy leaves out, in torch and in transformers.
IGNORED = -100


def supervised(model: nn.Module, batch: Any) -> Tensor:
    """The loss of a batch where nothing else is said.

    A pair (inputs, classes) gives the cross entropy of ``model(inputs)``; a mapping gives ``model(**batch).loss``, and
    one of ``input_ids`` without ``labels`` the loss of predicting each next token.

    Raises:
        UsageError: The batch, or what the model gives for it, is of another kind.
    """
    if isinstance(batch, Mapping):
        named = dict(batch)
        if "input_ids" in named and "labels" not in named:
            ids, mask = named["input_ids"], named.get("attention_mask")
            named["labels"] = ids if mask is None else ids.masked_fill(mask == 0, IGNORED)
        loss = getattr(model(**named), "loss", None)
        if isinstance(loss, Tensor):
            return loss
    elif isinstance(batch, Sequence) and len(batch) == 2:
        scores = model(batch[0])
        scores = getattr(scores, "logits", scores)
        if isinstance(scores, Tensor):
            return nn.functional.cross_entropy(scores, batch[1])
    raise UsageError(
        f"A batch of type {type(batch).__name__} gives no loss with a {type(model).__name__}: batches are pairs "
        "(inputs, classes) or the keyword arguments of a forward that returns a loss; or give TrainingTask a loss."
    )


@dataclass(frozen=True, kw_only=True)
class TrainingTask:
    """What a network is trained on.

    Attributes:
        batches: The batches of an epoch: something that can be iterated again and again (a list, a ``DataLoader``), or
            a function from the number of the epoch to its batches. Where it draws at random, it draws from torch's
            generator, which is seeded.
        loss: (model, batch) → a scalar.
        validate: model → a number, the larger the better, in evaluation mode without gradients; called after each
            epoch. The best epoch's weights are kept.
        directory: Where to leave a checkpoint after each epoch, and to go on from one that lies there; ``None`` for
            nowhere.
        identity: What else tells this training from another that could leave its checkpoint in the same directory, such
            as the name of the data; a recipe adds the stage with its options. The network before its first step and
            the options of the training count anyway.
        train: The caller's own training in the place of the loop: called with the model, which it trains in place, and
            a function to be told the share of the training that is done, from 0 to 1, before each step.
        knockoffs: Float inputs [batch, …] → their knockoffs, of the same shape, for a ``scop`` stage with
            ``knockoffs: given``: a generator's images, or what any other function makes.
    """

    batches: Iterable[Any] | Callable[[int], Iterable[Any]]
    loss: Callable[[nn.Module, Any], Tensor] = supervised
    validate: Callable[[nn.Module], float] | None = None
    directory: str | Path | None = None
    identity: str = ""
    train: Callable[[nn.Module, Anneal], None] | None = None
    knockoffs: Callable[[Tensor], Tensor] | None = None

    def scalar_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch, to be differentiated.

        Raises:
            UsageError: It is no tensor of one number, or depends on nothing that learns.
        """
        found: Any = self.loss(model, batch)
        if not isinstance(found, Tensor) or found.numel() != 1:
            kind = f"a tensor {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise UsageError(f"TrainingTask.loss gave {kind} for a batch; let it return a tensor of one number.")
        if not found.requires_grad:
            raise UsageError(
                "TrainingTask.loss gave a number that does not depend on what is trained: it was detached, made a "
                "number in between, or computed without gradients."
            )
        return found

    def epoch(self, number: int) -> Iterable[Any]:
        """The batches of an epoch.

        Raises:
            UsageError: They are an iterator, which an earlier epoch has used up.
        """
        found = self.batches(number) if callable(self.batches) else self.batches
        if not callable(self.batches) and iter(found) is found:
            raise UsageError(
                "TrainingTask.batches is an iterator, which serves one epoch only; give a list, a DataLoader, or a "
                "function from the number of the epoch to its batches."
            )
        return found


def on_device(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on a device; pairs, lists and mappings keep their kind."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: on_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        moved = [on_device(value, device) for value in batch]
        return tuple(moved) if isinstance(batch, tuple) else moved
    return batch
