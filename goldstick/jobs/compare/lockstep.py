"""Two models that run side by side and halt behind every module, so that outputs are compared and let go at once.

Each model's forward pass is a coroutine. One runs until a module of it has finished, then the other until one of its
has; where both have finished the module of one name, their outputs are compared. So only the outputs of modules that
one model has finished and the other has not are held: of one module where both run the same modules in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from goldstick.calibration.pauses import PausedPass
from goldstick.hf.streaming import StreamedModel


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A module that has run.

    Attributes:
        name: Its path; empty for the whole model.
        call: How often it had run before in this pass.
        kind: Its class.
        output: The first float tensor it gave, or ``None`` where it gave none.
    """

    name: str
    call: int
    kind: str
    output: Tensor | None


def run_in_steps(streamed: StreamedModel, run: Callable[[nn.Module], Any]) -> Iterator[Finished]:
    """Run one forward pass of a model that is read block by block; a step for every module that has finished.

    Args:
        streamed: The model. It is used up: its blocks are let go once they have run.
        run: Calls the model once.
    """
    calls: dict[str, int] = {}
    handles: list[Any] = []

    def watch(path: str, module: nn.Module) -> None:
        def note(module: nn.Module, _: Any, output: Any) -> None:
            call = calls[path] = calls.get(path, -1) + 1
            PausedPass.pause(Finished(name=path, call=call, kind=type(module).__name__, output=_first(output)))

        handles.append(module.register_forward_hook(note))

    def enter(block: str, module: nn.Module) -> None:
        """Read a block when its turn comes. Its modules are watched only then: reading replaces some of them."""
        if block == streamed.entered:
            return
        streamed.enter(block)
        for path, inner in module.named_modules(prefix=block):
            if path != block:
                watch(path, inner)

    def prepare(block: str) -> None:
        module = streamed.model.get_submodule(block)
        handles.append(module.register_forward_pre_hook(lambda module, _: enter(block, module)))
        watch(block, module)

    for block in streamed.blocks:
        prepare(block)
    inside = tuple(f"{block}." for block in streamed.blocks)
    for path, module in streamed.model.named_modules():
        if path not in streamed.blocks and not path.startswith(inside):
            watch(path, module)
    forward = PausedPass(lambda: run(streamed.model))
    try:
        forward.go_on()
        while not forward.done:
            yield forward.at
            forward.go_on()
    finally:
        for handle in handles:
            handle.remove()


def in_pairs(
    first: Iterator[Finished], second: Iterator[Finished], unpaired: tuple[list[Finished], list[Finished]]
) -> Iterator[tuple[Finished, Finished]]:
    """Advance two passes in turn; the steps of one name and call from both, as soon as both have come to them.

    Args:
        first: The steps of one pass.
        second: The steps of the other.
        unpaired: Receives, for each, the steps that the other never came to.
    """
    sides = (first, second)
    waiting: tuple[dict[tuple[str, int], Finished], ...] = ({}, {})
    going = [True, True]
    while any(going):
        for side in (0, 1):
            step = next(sides[side], None) if going[side] else None
            if step is None:
                going[side] = False
                continue
            other = waiting[1 - side].pop((step.name, step.call), None)
            if other is None:
                waiting[side][step.name, step.call] = step
            else:
                yield (step, other) if side == 0 else (other, step)
    for side in (0, 1):
        unpaired[side].extend(waiting[side].values())


def _first(output: Any) -> Tensor | None:
    """The first float tensor of a module's output, without the caches and masks that may stand beside it."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    values = output if isinstance(output, list | tuple) else output.values() if isinstance(output, Mapping) else ()
    return next((value for value in values if isinstance(value, Tensor) and value.is_floating_point()), None)
