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
    """Set running means and variances of batch norms to their means over ``count`` batches, in place.

    A network whose weights are still soft gives other statistics than the discrete one that will be stored, which the
    paper keeps apart as state batch normalization (arXiv 2009.08695, section 3.2). Here everything but the batch norms
    is in evaluation mode, so stand-ins compute with discrete weights. A model without batch norms is not run.

    Statistics that training would leave alone are left alone here, too: those of a momentum of 0, and of a norm that
    ``model.train()`` leaves in evaluation mode, as models with frozen norms have it. So are those of a norm that no
    batch reaches.

    Args:
        model: The network; it is left in evaluation mode.
        batches: Batches of training data.
        count: How many of them to use.
        loss: What runs the model on a batch.
    """
    model.train()
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and _moves(module)]
    model.eval()
    if not norms or count == 0:
        return
    momenta = [norm.momentum for norm in norms]
    before = [{name: value.clone() for name, value in norm.named_buffers(recurse=False)} for norm in norms]
    device = next(model.parameters()).device
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
        norm.train()
    with torch.no_grad():
        for _, batch in zip(range(count), batches, strict=False):
            loss(model, on_device(batch, device))
    for norm, momentum, buffers in zip(norms, momenta, before, strict=True):
        norm.momentum = momentum
        norm.eval()
        if not norm.num_batches_tracked:
            for name, value in norm.named_buffers(recurse=False):
                value.copy_(buffers[name])


def _moves(norm: _BatchNorm) -> bool:
    """Whether a batch norm in training mode would change its statistics."""
    return norm.training and norm.track_running_stats and norm.running_mean is not None and norm.momentum != 0
