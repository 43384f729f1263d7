"""Taylor scores: by how much a network's loss changes without a unit, to first order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from goldstick.structure.pruning.prunable import Prunable
from goldstick.structure.pruning.reading_masks import reading_masks
from goldstick.structure.trace import evaluating
from goldstick.training.task import TrainingTask, on_device


def taylor_scores(model: nn.Module, groups: Sequence[Prunable], task: TrainingTask) -> dict[str, Tensor]:
    """E[(∂L/∂m)²] over the batches of an epoch, m a unit's mask of ones (arXiv 1906.10771).

    The mask lies on the channels where layers read them. A mask of 0 is the unit gone, so ∂L/∂m is what the loss loses
    without it to first order. Scores of all groups are of one unit, and can be compared.

    Args:
        model: The network, in evaluation mode meanwhile; it is left as it was.
        groups: What can be cut.
        task: The batches, and their loss.

    Returns:
        Name of a group → float64 [units].
    """
    device = next(model.parameters()).device
    masks = {
        group.name: torch.ones(group.units + 1, dtype=torch.float32, device=device, requires_grad=True)
        for group in groups
    }
    sums = {group.name: torch.zeros(group.units, dtype=torch.float64) for group in groups}
    batches = 0
    with evaluating(model), _without_gradients(model), ExitStack() as stack:
        for group in groups:
            stack.enter_context(reading_masks(model, group, masks[group.name]))
        for batches, batch in enumerate(task.epoch(0), start=1):  # noqa: B007  counts them
            with torch.enable_grad():
                loss = task.scalar_loss(model, on_device(batch, device))
                found = torch.autograd.grad(loss, list(masks.values()), allow_unused=True)
            for total, gradient in zip(sums.values(), found, strict=True):
                if gradient is not None:
                    total += gradient[:-1].double().cpu().square()
    return {name: total / max(batches, 1) for name, total in sums.items()}


@contextmanager
def _without_gradients(model: nn.Module) -> Iterator[None]:
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
