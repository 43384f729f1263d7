"""Whether blocks share what is not among their arguments, such as a mask that the model's forward keeps on a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.calibration.arguments import BlockCall, hidden_of
from goldstick.core.notices import SharedStateWarning
from goldstick.structure.calls import ForwardLeft, first_call
from goldstick.structure.trace import tensors_in

#: Two runs on the same input may differ by this part of the output and no more.
_NOISE = 1e-2


def share_state(
    model: nn.Module,
    chain: Sequence[str],
    batches: Sequence[Mapping[str, Any]],
    hidden: Tensor,
    calls: Mapping[str, BlockCall],
) -> bool:
    """Whether blocks give something else than in the model's own forward when they run behind that of another batch.

    Args:
        model: The model, in memory, in evaluation mode.
        chain: Paths of blocks that feed one another.
        batches: Keyword arguments of its forward.
        hidden: What the first block is given for the first batch.
        calls: Every block's other arguments for it.
    """

    def whole() -> Tensor:
        return _given_by(model.get_submodule(chain[-1]), partial(model, **batches[0]))

    expected = whole()
    if others := batches[1:]:
        other = max(others, key=lambda batch: sum(_differs(batches[0].get(name), batch[name]) for name in batch))
        first_call([model.get_submodule(chain[0])], partial(model, **other))
    try:
        for block in chain:
            hidden = calls[block].run(model.get_submodule(block), hidden)
    except Exception:  # any code of the model may fail on what is left of another batch
        return True
    return not _close(expected, hidden) and _close(expected, whole())  # not where no two runs are alike


def shared_state_warning(model: nn.Module) -> SharedStateWarning:
    """What the user is told of a model with such blocks."""
    return SharedStateWarning(
        f"The blocks of this {type(model).__name__} read what its forward leaves for a batch outside their arguments, "
        "such as on a module, so that batches run one at a time through the whole model, which takes longer, and "
        "nothing absorbs a scale. Hand it to the blocks as an argument to have them calibrated one by one."
    )


def _given_by(block: nn.Module, run: Callable[[], object]) -> Tensor:
    """What a block gives in a forward, which is left behind it."""
    found: list[Tensor] = []

    def leave(_: nn.Module, args: object, output: object) -> None:
        found.append(hidden_of(output))
        raise ForwardLeft

    handle = block.register_forward_hook(leave)
    try:
        with suppress(ForwardLeft):
            run()
    finally:
        handle.remove()
    return found[0].detach()


def _differs(one: Any, other: Any) -> bool:
    """Whether two arguments hold other tensors."""
    some, others = list(tensors_in(one)), list(tensors_in(other))
    alike = [left.shape == right.shape and torch.equal(left, right) for left, right in zip(some, others, strict=False)]
    return len(some) != len(others) or not all(alike)


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    difference = torch.where(one == other, 0, one.double() - other.double()).nan_to_num()
    return bool(difference.norm() <= _NOISE * one.double().nan_to_num().norm())
