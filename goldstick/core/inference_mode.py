"""torch's inference mode, in which nothing learns, and what was made in it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn


def without_inference_mode() -> AbstractContextManager[object]:
    """Inside, a caller's inference mode is left; where there is none, gradients are as the caller has them."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def ordinary(tensor: Tensor) -> Tensor:
    """A tensor, or a copy of it where it was made in inference mode, which outside of it neither learns nor changes."""
    return tensor.clone() if tensor.is_inference() else tensor


def make_ordinary(model: nn.Module) -> None:
    """Put copies in the places of all parameters and buffers of a model that were made in inference mode."""
    copies: dict[int, tuple[Tensor, Tensor]] = {}  # with the tensor itself: no other gets its id
    for module in model.modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or not tensor.is_inference():
                continue
            if id(tensor) not in copies:
                made = tensor.detach().clone()
                is_parameter = isinstance(tensor, nn.Parameter)
                made = nn.Parameter(made, requires_grad=tensor.requires_grad) if is_parameter else made
                copies[id(tensor)] = tensor, made
            setattr(module, name, copies[id(tensor)][1])
