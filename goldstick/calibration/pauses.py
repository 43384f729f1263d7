"""Forward passes that pause where an input group begins, so that each token passes each layer once.

Every batch runs through the block in a coroutine of its own. Before the first layer of an input group it pauses; when
all batches have arrived the group is solved on their inputs, its weights are replaced, and the batches go on through
them. True-sequential calibration costs one forward pass this way, for the price of holding all batches' activations
of one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from greenlet import getcurrent, greenlet
from torch import Tensor, nn

from goldstick.structure.trace import tensor_identity

Solve = Callable[[int, list["Arrival"]], None]
Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A batch that has come to the first layer of a group.

    Attributes:
        module: That layer.
        args: What it is called with.
        kwargs: The same, by keyword.
        batch: Number of the batch.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch: int = 0

    @property
    def tensor(self) -> Tensor:
        """The input itself."""
        found: Tensor = next(value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor))
        return found


@contextmanager
def called_before(modules: Iterable[nn.Module], hook: Hook) -> Iterator[None]:
    """Inside the context, a hook is called before each module's forward with all that the module is given."""
    handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_with_pauses(
    passes: Sequence[Callable[[], Any]], groups: Sequence[Sequence[nn.Module]], solve: Solve
) -> list[Any]:
    """Run forward passes that stop together before each group of layers.

    Args:
        passes: A block's forward on each batch.
        groups: The layers of each group, in order of execution; a pass pauses at the first of a group it reaches.
        solve: Called with a group's number and the batches that arrived, once for each group that any pass reaches.

    Returns:
        What the passes returned.
    """
    hub = getcurrent()
    number_of = {module: number for number, group in enumerate(groups) for module in group}
    solved: set[int] = set()

    def pause(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if number_of[module] not in solved:
            hub.switch((number_of[module], Arrival(module=module, args=args, kwargs=kwargs)))

    workers = [greenlet(run) for run in passes]
    with called_before(number_of, pause):
        at = {index: worker.switch() for index, worker in enumerate(workers)}
        while waiting := {index: where for index, where in at.items() if not workers[index].dead}:
            number = min(where[0] for where in waiting.values())
            here = [index for index, where in waiting.items() if where[0] == number]
            solve(number, [waiting[index][1] for index in here])
            solved.add(number)
            for index in here:
                at[index] = workers[index].switch()
    return [at[index] for index in range(len(workers))]


def inputs_in_order(modules: Sequence[nn.Module], run: Callable[[], Tensor]) -> list[tuple[nn.Module, object]]:
    """Run a forward pass; each module it reaches and a key that is equal for those that got the same tensor."""
    found: list[tuple[nn.Module, object]] = []
    held: list[Tensor] = []  # so that no other tensor takes its place in memory

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensor = Arrival(module=module, args=args, kwargs=kwargs).tensor
        held.append(tensor)
        found.append((module, tensor_identity(tensor)))

    with called_before(modules, note):
        run()
    return found
