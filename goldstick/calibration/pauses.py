"""Forward passes that pause on their way, each in a coroutine of its own, and what they pause with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from greenlet import GreenletExit, error, getcurrent, greenlet
from torch import Tensor, nn

from goldstick.core.torch_modes import TorchModes
from goldstick.errors import StructureError
from goldstick.structure.calls import called_before
from goldstick.structure.trace import tensor_identity


class PausedPass:
    """A forward pass that has not begun, stands at a :meth:`pause`, or is done.

    What it has switched on for its thread, such as autocast, is off while it stands, and on again when it goes on.

    Args:
        run: The pass.

    Attributes:
        at: What it paused with; when it is done, what it gave.
    """

    def __init__(self, run: Callable[[], Any]) -> None:
        self._coroutine = self._standing = greenlet(run)
        self._driver: greenlet | None = None
        self.at: Any = None

    @property
    def done(self) -> bool:
        """Whether it has come to its end."""
        return bool(self._coroutine.dead)

    def go_on(self) -> None:
        """Let it run to the next pause, or to its end. What it raises comes out here."""
        self._coroutine.parent = self._driver = getcurrent()
        outer, _HERE.running = running(), self
        try:
            with TorchModes.here().entered():
                self.at = self._standing.switch()
        finally:
            _HERE.running = outer

    def abandon(self) -> None:
        """Leave it where it stands, for good."""
        if self.done:
            return
        with suppress(error), TorchModes.here().entered():  # one of another thread ends when that thread does
            self._coroutine.throw(GreenletExit)

    @staticmethod
    def pause(at: Any) -> None:
        """Called by a hook: if that is inside a pass, whoever let it go on does so itself now.

        A model may run its layers in coroutines of its own: the one that has come to the pause is gone on with.
        """
        inside = running()
        if inside is not None:
            inside._standing = getcurrent()
            assert inside._driver is not None
            with TorchModes.here().entered():
                inside._driver.switch(at)


class _Here(threading.local):
    running: PausedPass | None = None


_HERE = _Here()


def running() -> PausedPass | None:
    """The pass that this thread is in."""
    return _HERE.running


@dataclass(frozen=True, kw_only=True)
class CapturedInput:
    """A batch that has come to the first layer of a group.

    Attributes:
        module: That layer.
        args: What it is called with.
        kwargs: The same, by keyword.
        batch: Number of the batch.
        modes: What torch has for the thread that calls it; as now where not given.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch: int = 0
    modes: TorchModes = field(default_factory=TorchModes.here)

    @property
    def tensor(self) -> Tensor:
        """The input itself."""
        found: Tensor = next(value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor))
        return found

    def through(self, forward: Callable[..., Any]) -> Any:
        """What a function gives for it, called as that layer is."""
        with self.modes.for_a_call().entered():
            return forward(*self.args, **self.kwargs)


def inputs_in_order(modules: Sequence[nn.Module], run: Callable[[], Tensor]) -> list[tuple[nn.Module, object]]:
    """Run a forward pass; each module it reaches and a key that is equal for those that got the same tensor.

    Raises:
        StructureError: It calls one of them from another thread.
    """
    found: list[tuple[nn.Module, object]] = []
    thread, elsewhere = threading.get_ident(), list[nn.Module]()
    held: list[Tensor] = []  # so that no other tensor takes its place in memory

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() != thread:  # an error would be lost there
            elsewhere.append(module)
        tensor = CapturedInput(module=module, args=args, kwargs=kwargs).tensor
        held.append(tensor)
        found.append((module, tensor_identity(tensor)))

    with called_before(modules, note):
        run()
    if elsewhere:
        raise StructureError(
            f"The model's forward calls {elsewhere[0]} from another thread, where a pass cannot wait for what is being "
            "calibrated. Call it in the thread of the forward while calibrating, exclude the layer (targets: {exclude: "
            "[...]}), or take an algorithm that looks at no data, such as rtn."
        )
    return found
