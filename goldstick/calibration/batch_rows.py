"""Rows of a batch: how many there are, and whether a model takes them one by one or mixes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.structure.trace import evaluating, keeping_buffers, map_tensors, on_device, tensors_in

Batch = Mapping[str, Any]


def count_rows(batch: Batch) -> int:
    """How many rows every tensor of a batch has; 0 where they do not all have as many. Numbers have none."""
    counts = {len(tensor) for tensor in tensors_in(batch) if tensor.ndim}
    return counts.pop() if len(counts) == 1 else 0


def rows_of(batch: Batch, part: slice) -> dict[str, Any]:
    """Some rows of a batch; what is no tensor belongs to each."""
    found: dict[str, Any] = map_tensors(dict(batch), lambda tensor: tensor[part] if tensor.ndim else tensor)
    return found


def is_text(batch: Batch) -> bool:
    """Whether it holds rows of token ids, and no tensor of another shape."""
    ids = batch.get("input_ids")
    return isinstance(ids, Tensor) and ids.ndim == 2 and all(one.shape == ids.shape for one in tensors_in(batch))


@torch.no_grad()
def same_in_parts(model: nn.Module, batch: Batch, parts: Sequence[Batch]) -> bool:
    """Whether a model gives for the parts of a batch what it gives for all of it.

    A graph does not run in parts, or gives something else. Numbers may differ by the root of their dtype's precision,
    since sums have another order where there are fewer rows. A model that gives no tensor but numbers shows nothing;
    nor does a tensor with a further axis of rows, such as the similarities of pictures and texts.

    Args:
        model: The model; left as it is.
        batch: Keyword arguments of its forward.
        parts: The same rows, some at a time, in their order.
    """
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    with evaluating(model), keeping_buffers(model):
        try:
            whole, *pieces = ([*_given(model, on_device(each, device))] for each in (batch, *parts))
        except torch.OutOfMemoryError:
            raise
        except Exception:  # any code of the model may fail on a part of what it takes
            return False
    if any(len(found) != len(whole) for found in pieces):
        return False
    together = zip(whole, zip(*pieces, strict=True), strict=True)
    shown = [(one, parts) for one, parts in together if all(part.shape[1:] == one.shape[1:] for part in parts)]
    return bool(shown) and all(_is_joined(one, parts) for one, parts in shown)


def _given(model: nn.Module, batch: Batch) -> Sequence[Tensor]:
    return [tensor for tensor in tensors_in(model(**batch)) if tensor.ndim]


def _is_joined(whole: Tensor, parts: Sequence[Tensor]) -> bool:
    if sum(map(len, parts)) != len(whole):
        return False
    joined = torch.cat(list(parts))
    differ = joined != whole
    if not whole.is_floating_point():
        return not bool(differ.any())
    error = (joined.double() - whole.double())[differ].norm()
    size = whole.double()[whole.isfinite()].norm()
    return bool(error <= torch.finfo(whole.dtype).eps ** 0.5 * size)
