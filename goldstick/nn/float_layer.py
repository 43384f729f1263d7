"""What ``type(layer)(…)`` makes where the class is that of a quantized layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def float_layer_of(kind: type[nn.Module]) -> Callable[..., nn.Module]:
    """The ``__new__`` of a class of quantized layers, which have no constructor: it makes a float layer.

    Adapters are made so: peft asks the class of a convolution for two small ones. Without arguments it is that of
    every object: torch makes blank copies so (``nn.DataParallel``, parametrized layers).

    Args:
        kind: The class that it was derived from, whose arguments it takes.
    """

    def new(cls: type[nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
        return kind(*args, **kwargs) if args or kwargs else nn.Module.__new__(cls)

    return new
