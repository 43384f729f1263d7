"""Forward passes that pause on their way, each in a coroutine of its own, and what they pause with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet
from torch import Tensor, nn

from goldstick.structure.calls import called_before
from goldstick.structure.trace import tensor_identity


class PausedPass:
    """A forward pass that has not begun, stands at a :meth:`pause`, or is done.

    Args:
        run: The pass.

    Attributes:
        at: What it paused with; when it is done, what it gave.
    """

    def __init__(self, run: Callable[[], Any]) -> None:
        self._coroutine = greenlet(run)
        self.at: Any = None

    @property
    def done(self) -> bool:
        """Whether it has come to its end."""
        return bool(self._coroutine.dead)

    def go_on(self) -> None:
        """Let it run to the next pause, or to its end. What it raises comes out here."""
        self._coroutine.parent = getcurrent()
        self.at = self._coroutine.switch()

    def abandon(self) -> None:
        """Leave it where it stands, for good."""
        self._coroutine.throw(GreenletExit)

    @staticmethod
    def pause(at: Any) -> None:
        """Called inside a pass, by a hook: whoever let it go on does so itself now."""
        getcurrent().parent.switch(at)


@dataclass(frozen=True, kw_only=True)
class CapturedInput:
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


def inputs_in_order(modules: Sequence[nn.Module], run: Callable[[], Tensor]) -> list[tuple[nn.Module, object]]:
    """Run a forward pass; each module it reaches and a key that is equal for those that got the same tensor."""
    found: list[tuple[nn.Module, object]] = []
    held: list[Tensor] = []  # so that no other tensor takes its place in memory

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensor = CapturedInput(module=module, args=args, kwargs=kwargs).tensor
        held.append(tensor)
        found.append((module, tensor_identity(tensor)))

    with called_before(modules, note):
        run()
    return found
