"""What each expert of a fused mixture is given, seen while the mixture's own forward routes the tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from goldstick.calibration.pauses import CapturedInput

_PRODUCTS = (nn.functional.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__)


class _Listen(TorchFunctionMode):
    """Hears every product with an expert's slice of a fused parameter, and tells which expert it was."""

    def __init__(self, parameter: Tensor, hear: Callable[[int, Tensor], None]) -> None:
        super().__init__()
        self._parameter, self._hear = parameter, hear
        self._slices: dict[int, tuple[Tensor, int]] = {}  # held, so that no other tensor takes its place

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS and len(args) >= 2 and id(args[1]) in self._slices:
            self._hear(self._slices[id(args[1])][1], args[0])
        result = func(*args, **(kwargs or {}))
        if func is Tensor.__getitem__ and args[0] is self._parameter:
            self._slices[id(result)] = result, int(args[1])
        return result


def listen_to_experts(parameter: Tensor, captured: CapturedInput, hear: Callable[[int, Tensor], None]) -> None:
    """Run the experts' forward on a batch and pass on (expert, input) for every product with ``parameter``.

    The experts module must take one expert's matrix at a time (``parameter[expert]``), as transformers' eager
    implementation does.
    """
    with torch.no_grad(), _Listen(parameter, hear):
        captured.module.forward(*captured.args, **captured.kwargs)
