"""The forward of an activation that the layer before it has taken over."""

from __future__ import annotations

from torch import Tensor


class PassedOn:
    """y = x."""

    def __call__(self, input: Tensor) -> Tensor:
        """The very tensor."""
        return input
