"""Trainables: what stands in for a layer, or for its weight, while it is trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters of a trainable that learn at a rate of their own, without weight decay.

    Attributes:
        parameters: The parameters.
        rate: Their learning rate at its highest; it falls as the others' does.
    """

    parameters: tuple[nn.Parameter, ...]
    rate: float


class Trainable(nn.Module, ABC):
    """A module that tells a training how hard it may be, and how fast its parameters learn."""

    @abstractmethod
    def anneal(self, progress: float) -> None:
        """Take note of how much of the training is done, from 0 to 1."""

    def groups(self) -> Sequence[ParameterGroup]:
        """The parameters that learn at rates of their own."""
        return ()


class TrainableWrapper(Trainable):
    """A module that takes a layer's place during training and tends to what the layer will become.

    In training mode its forward can be differentiated in what is to be decided; in evaluation mode it computes what the
    decision, as it stands, gives.

    Args:
        layer: The layer, which becomes a submodule; what it holds beside the decided parameter goes on learning.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
