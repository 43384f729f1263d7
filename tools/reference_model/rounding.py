"""Round-to-nearest fake quantization: what plain rounding of the linear layers' weights costs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

GROUP_SIZE = 128


def fake_quantize(weight: Tensor, bits: int) -> Tensor:
    """Round a weight (outputs, inputs) to a symmetric grid per group of 128 inputs.

    scale = absmax / (2^(bits-1) - 1); codes run from -2^(bits-1) to 2^(bits-1) - 1.
    """
    most = 2 ** (bits - 1) - 1
    groups = weight.reshape(len(weight), -1, GROUP_SIZE)  # (outputs, groups, 128)
    scale = groups.abs().amax(-1, keepdim=True).clamp_min(1e-8) / most
    codes = (groups / scale).round().clamp(-most - 1, most)
    rounded: Tensor = codes * scale
    return rounded.flatten(1)


@torch.no_grad()
def round_linears(model: nn.Module, bits: int) -> None:
    """Round every linear layer of a model but `lm_head`, in place."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not name.endswith("lm_head"):
            module.weight.copy_(fake_quantize(module.weight, bits))
