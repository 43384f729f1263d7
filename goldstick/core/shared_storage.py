"""Parameters that lie in one memory without being one parameter."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from goldstick.core.module_state import is_plain


def part_storage(model: nn.Module) -> None:
    """Give parameters that lie in the memory of another tensor of the model memory of their own.

    A deep copy of the model has it so, too: only what is one parameter stays tied there. What is then done to one of
    them in place leaves the others as they are.
    """
    taken: dict[tuple[torch.device, int], list[tuple[int, int]]] = {}
    tensors = {id(tensor): tensor for tensor in (*model.buffers(), *model.parameters())}
    for tensor in tensors.values():
        if not is_plain(tensor) or tensor.is_meta or not tensor.numel():
            continue
        start, end = _span(tensor)
        spans = taken.setdefault((tensor.device, tensor.untyped_storage().data_ptr()), [])
        within = any(start < other_end and other_start < end for other_start, other_end in spans)
        repeats = end - start < tensor.nbytes
        if isinstance(tensor, nn.Parameter) and (within or repeats):
            tensor.data = tensor.detach().clone()
        else:
            spans.append((start, end))


def _span(tensor: Tensor) -> tuple[int, int]:
    """Addresses from the first byte of a tensor to behind its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize
