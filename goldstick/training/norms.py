"""State batch-norm: the running statistics of batch norms, measured with the weights as they will be stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from goldstick.training.task import on_device


def measure_norms(
    model: nn.Module, batches: Iterable[Any], count: int, loss: Callable[[nn.Module, Any], Tensor]
) -> None:
    """Set the running mean and variance of every batch norm to their means over ``count`` batches, in place.

    A network whose weights are still soft gives other statistics than the discrete one that will be stored, which the
    paper keeps apart as state batch normalization (arXiv 2009.08695, section 3.2). Here everything but the batch norms
    is in evaluation mode, so stand-ins compute with discrete weights. A model without batch norms is not run.

    Args:
        model: The network; it is left in evaluation mode.
        batches: Batches of training data.
        count: How many of them to use.
        loss: What runs the model on a batch.
    """
    model.eval()
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not norms or count == 0:
        return
    momenta = [norm.momentum for norm in norms]
    device = next(model.parameters()).device
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
        norm.train()
    with torch.no_grad():
        for _, batch in zip(range(count), batches, strict=False):
            loss(model, on_device(batch, device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()
