"""Bias correction: the mean of what a layer gives before and after its weight is rounded."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from goldstick.calibration.pauses import CapturedInput
from goldstick.core.layout import Layout
from goldstick.core.ranks import Ranks


def mean_output(
    module: nn.Module, layout: Layout, inputs: Iterable[CapturedInput], ranks: Ranks | None = None
) -> Tensor | None:
    """The mean of each output channel, float64 [out]; ``None`` where no input came.

    Args:
        module: A linear layer or a convolution.
        layout: How it stores its weight.
        inputs: What it, or a layer that reads the same, was called with.
        ranks: Who has further inputs, which count after those of the ranks before.
    """
    sums: list[tuple[Tensor, int]] = []
    for captured in inputs:
        found = captured.through(module.forward)  # not a call, before which the pass would pause
        if layout is Layout.CONVOLUTION:
            found = found.movedim(-1 - len(module.kernel_size), -1)  # type: ignore[arg-type]
        rows = found.reshape(-1, found.shape[-1])
        sums.append((rows.double().sum(0), len(rows)))
    sums = [one for each in (ranks or Ranks()).gather(sums) for one in each]  # in one order, whoever has them
    if not sums:
        return None
    total = sums[0][0]
    for further, _ in sums[1:]:
        total = further + total
    return total / max(sum(count for _, count in sums), 1)


def has_bias(module: nn.Module) -> bool:
    """Whether a layer has a float bias to correct."""
    return isinstance(getattr(module, "bias", None), nn.Parameter)


@torch.no_grad()
def correct_bias(module: nn.Module, before: Tensor, after: Tensor) -> None:
    """b ← b + E[W·x] − E[Ŵ·x] (arXiv 1906.04721, equation 15), in float64, in place.

    Args:
        module: The layer.
        before: E[W·x + b], float64 [out].
        after: E[Ŵ·x + b], likewise.
    """
    bias = module.get_parameter("bias")
    bias.copy_(bias.double() + before.to(bias.device) - after.to(bias.device))
