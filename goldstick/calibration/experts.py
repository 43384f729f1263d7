"""What each expert of a fused mixture is given, seen while the mixture's own forward routes the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from goldstick.calibration.passes import Passes
from goldstick.calibration.pauses import CapturedInput
from goldstick.calibration.task import Assignment
from goldstick.core.inputs import InputObserver
from goldstick.structure.trace import map_tensors, tensors_in

_PRODUCTS = (nn.functional.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__)
_STACKED = (torch.bmm, Tensor.bmm, torch.matmul, Tensor.matmul, Tensor.__matmul__)


class _Listen(TorchFunctionMode):
    """Hears every product with an expert's slice of a fused parameter, or with all of it, and tells whose it was.

    Where all experts are multiplied at once, tokens that are none of an expert's come to it as rows of zeros.
    """

    def __init__(self, parameter: Tensor, hear: Callable[[int, Tensor], None]) -> None:
        super().__init__()
        self._parameter, self._hear = parameter, hear
        self._slices: dict[int, tuple[Tensor, int]] = {}  # held, so that no other tensor takes its place

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS and len(args) >= 2 and id(args[1]) in self._slices:
            self._hear(self._slices[id(args[1])][1], args[0])
        elif func in _STACKED and len(args) >= 2 and self._is_whole(args[1]):
            for expert, rows in enumerate(args[0]):
                self._hear(expert, rows[rows.any(dim=-1)])
        result = func(*args, **(kwargs or {}))
        if func is Tensor.__getitem__ and args[0] is self._parameter:
            self._slices[id(result)] = result, int(args[1])
        return result

    def _is_whole(self, tensor: Tensor) -> bool:
        """Whether a tensor is the parameter, as it is or transposed."""
        own = self._parameter
        return tensor.ndim == 3 and tensor.data_ptr() == own.data_ptr() and tensor.numel() == own.numel()


def observe_experts(
    task: Assignment, parameter: Callable[[], Tensor], passes: Passes
) -> tuple[Sequence[InputObserver] | None, dict[str, float | str]]:
    """What the experts of a task are given; an expert that too few tokens reached is shown every token.

    Args:
        task: The task.
        parameter: Gives the weights of all its experts, [experts, …], where the passes are.
        passes: The passes, with the experts at hand.

    Returns:
        An observer for each expert, or ``None`` where the task's stage looks at no data; notes for the report.
    """
    state = task.stage.attach(task.site)
    if state is None:
        return None, {}
    for captured in passes.captured_inputs():
        listen_to_experts(parameter(), captured, lambda expert, x: state[expert].observe(x))
    if not passes.ranks.alone:
        state.share(passes.ranks)
    least = task.stage.least_inputs(task.site)
    starved = {expert for expert, seen in enumerate(state) if seen.tokens < least}
    if not starved:
        return state, {}
    fresh = task.stage.attach(task.site)

    def hear(expert: int, x: Tensor) -> None:
        if expert in starved:
            fresh[expert].observe(x)

    for captured in passes.captured_inputs():
        listen_to_experts(parameter(), captured, hear, every_token=True)
    if not passes.ranks.alone:
        fresh.share(passes.ranks)
    for expert in starved:
        state[expert] = fresh[expert]
    return state, {"shown_every_token": len(starved)}


def listen_to_experts(
    parameter: Tensor, captured: CapturedInput, hear: Callable[[int, Tensor], None], *, every_token: bool = False
) -> None:
    """Run the experts' forward on a batch and pass on (expert, input) for every product with ``parameter``.

    The experts module must take one expert's matrix at a time (``parameter[expert]``), as transformers' eager
    implementation does, or all of them in one batched product.

    Args:
        parameter: The weights of all experts, [experts, …].
        captured: What the module was given.
        hear: Told of each product.
        every_token: Whether every expert is given every token, whatever the router chose; nothing runs where the module
            is not told the choice as a tensor of numbers of experts.
    """
    if every_token:
        chosen = next((one for one in tensors_in((captured.args, captured.kwargs)) if _is_choice(one)), None)
        if chosen is None:
            return
        everyone = torch.arange(len(parameter), device=chosen.device, dtype=chosen.dtype).expand(len(chosen), -1)

        def to_everyone(tensor: Tensor) -> Tensor:
            if tensor is chosen:
                return everyone
            weights = tensor.shape == chosen.shape and tensor.is_floating_point()
            return tensor.new_ones(everyone.shape) if weights else tensor

        args, kwargs = map_tensors((captured.args, captured.kwargs), to_everyone)
        captured = replace(captured, args=args, kwargs=kwargs)

    def forward(*args: Any, **kwargs: Any) -> None:
        with torch.no_grad(), _Listen(parameter, hear):
            captured.module.forward(*args, **kwargs)

    captured.through(forward)


def _is_choice(tensor: Tensor) -> bool:
    return tensor.ndim == 2 and tensor.dtype in (torch.int32, torch.int64)
