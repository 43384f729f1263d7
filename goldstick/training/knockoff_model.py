"""KnockoffModel: a network that is shown knockoffs beside its data, and gives its outputs on the data alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.core.trainable_wrapper import TrainableWrapper
from goldstick.structure.trace import map_tensors, samples_in
from goldstick.training.knockoffs import GaussianKnockoffs, derangement
from goldstick.training.task import IGNORED


class KnockoffModel(nn.Module):
    """A frozen network that runs on [real; knockoff] batches and gives what belongs to the real half.

    Only each :class:`TrainableWrapper` in it is ever in training: batch norms keep their statistics, and nothing is
    dropped out. In evaluation mode it is the network.

    Args:
        model: The network.
        knockoffs: Float inputs → their knockoffs; ``None`` takes another sample of the batch. Integers, such as token
            ids with their masks, are always another sample's. A batch of one sample has no other and is its own
            knockoff there, of which the gates learn nothing.
    """

    def __init__(self, model: nn.Module, knockoffs: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.model, self.knockoffs = model, knockoffs

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # a loss may ask the network for its config
            return getattr(super().__getattr__("model"), name)

    def train(self, mode: bool = True) -> KnockoffModel:
        """Training mode is for the gates alone."""
        super().train(mode)
        for module in self.model.modules():
            if not isinstance(module, TrainableWrapper):
                module.training = False
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the network gives for the real half."""
        if not self.training:
            return self.model(*args, **kwargs)
        count = samples_in((args, kwargs))
        order = derangement(count) if count > 1 else torch.zeros(count, dtype=torch.long)

        def beside(tensor: Tensor) -> Tensor:
            if tensor.ndim == 0 or tensor.shape[0] != count:
                return tensor
            if self._makes(tensor):
                assert self.knockoffs is not None
                return torch.cat([tensor, self.knockoffs(tensor)])
            return torch.cat([tensor, tensor[order.to(tensor.device)]])

        named = {key: map_tensors(value, beside) for key, value in kwargs.items()}
        if isinstance(labels := kwargs.get("labels"), Tensor):
            # No number is left out of a loss of floats. Gates have no part in that half, whatever it loses.
            others = labels if labels.is_floating_point() else torch.full_like(labels, IGNORED)
            named["labels"] = torch.cat([labels, others])
        with _layer_by_layer():
            return _real(self.model(*map_tensors(args, beside), **named), count)

    def _makes(self, tensor: Tensor) -> bool:
        """Whether the function gives this tensor's knockoffs, instead of the other samples."""
        if self.knockoffs is None or not tensor.is_floating_point():
            return False
        return len(tensor) > 1 or not takes_others(self.knockoffs)


@contextmanager
def _layer_by_layer() -> Iterator[None]:
    """Torch's transformer encoders call their layers inside, instead of one kernel that would pass the gates by."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def takes_others(knockoffs: Callable[[Tensor], Tensor] | None) -> bool:
    """Whether knockoffs of a float input are, in part, other samples of its batch."""
    return knockoffs is None or (isinstance(knockoffs, GaussianKnockoffs) and knockoffs.basis is not None)


def _real(output: Any, count: int) -> Any:
    if isinstance(output, Tensor):
        return output[:count] if output.ndim and output.shape[0] == 2 * count else output
    if isinstance(output, MutableMapping):  # transformers' outputs stay what they are
        for key, value in list(output.items()):
            if isinstance(value, Tensor | tuple):
                output[key] = _real(value, count)
        return output
    if isinstance(output, tuple) and not hasattr(output, "_fields"):
        return tuple(_real(value, count) for value in output)
    return {key: _real(value, count) for key, value in output.items()} if isinstance(output, Mapping) else output
