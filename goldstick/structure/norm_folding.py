"""Batch norms that convolutions can take over: found by running the network, and folded.

In evaluation a batch norm is y = (x − μ) · g / √(σ² + ε) + b for each channel. With x = W ∗ u + c the two are one
convolution, of W·g/√(σ² + ε) and (c − μ) · g/√(σ² + ε) + b (arXiv 1712.05877, section 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from goldstick.core.batch_norm import gain_and_shift
from goldstick.core.edits import FoldNorm
from goldstick.core.stand_in import foreign_forward
from goldstick.errors import StructureError
from goldstick.structure.following import find_followers
from goldstick.structure.plain_layers import inherits_forward

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)


def find_norm_folds(model: nn.Module, inputs: Mapping[str, Any]) -> list[FoldNorm]:
    """Batch norms whose input is the output of one convolution, which nothing else reads, in order of execution.

    Both must be called once, by torch's own forward, and share no parameter with others; the norm must keep running
    statistics.

    Args:
        model: The network, in memory; left as it is.
        inputs: Keyword arguments of its forward.
    """
    pairs = find_followers(model, inputs, _convolves, normalises)
    return [FoldNorm(convolution=convolution, norm=norm) for convolution, norm in pairs]


@torch.no_grad()
def fold_norm(convolution: Any, norm: Any) -> None:
    """Let a convolution give what the batch norm behind it makes of its output, in place; the norm is left as it is.

    Computed in float64 and stored in the dtype of the weight.

    Raises:
        StructureError: The two have other numbers of channels, or are no convolution and no batch norm.
    """
    if not _convolves(convolution) or not normalises(norm) or convolution.out_channels != norm.num_features:
        raise StructureError(f"A {type(norm).__name__} cannot be folded into this {type(convolution).__name__}.")
    weight = convolution.weight
    gain, shift = gain_and_shift(norm)
    if convolution.bias is not None:
        shift = shift + convolution.bias.double() * gain
    factors = gain.view(-1, 1)  # [out, 1]
    if isinstance(convolution, _TRANSPOSED):  # its weight is [in, out / groups, …]
        factors = gain.view(convolution.groups, -1).repeat_interleave(len(weight) // convolution.groups, dim=0)
    weight.copy_(weight.double() * factors.view(*factors.shape, *[1] * (weight.ndim - 2)))
    convolution.bias = nn.Parameter(shift.to(weight.dtype), requires_grad=weight.requires_grad)


def norm_fold_from_dict(value: object) -> FoldNorm:
    """The edit that a checkpoint's config describes.

    Raises:
        StructureError: It describes none.
    """
    names = value if isinstance(value, Mapping) else {}
    if not all(isinstance(names.get(key), str) for key in ("convolution", "norm")):
        raise StructureError(f"{value!r} describes no folded batch norm.")
    return FoldNorm(convolution=str(names["convolution"]), norm=str(names["norm"]))


def _convolves(module: Any) -> bool:
    kind = next((kind for kind in _CONVOLUTIONS if isinstance(module, kind)), None)
    plain = kind is not None and type(module).forward is kind.forward and inherits_forward(module)
    return plain and foreign_forward(module) is None and isinstance(module.weight, nn.Parameter)


def normalises(module: Any) -> bool:
    """Whether this is a batch norm of torch that keeps running statistics."""
    plain = isinstance(module, _BatchNorm) and type(module).forward is _BatchNorm.forward
    return plain and module.running_mean is not None and module.running_var is not None
