"""The calls of modules in a forward: watching them, leaving the forward at one, putting others in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from torch import nn

#: Called before a module's forward with the module, its positional and its keyword arguments.
Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]


class ForwardLeft(BaseException):
    """Leaves a forward that has come far enough; no ``except Exception`` of a model may swallow it."""


@contextmanager
def called_before(modules: Iterable[nn.Module], hook: Hook) -> Iterator[None]:
    """Inside the context, a hook is called before each module's forward with all that the module is given."""
    handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_up_to(modules: Iterable[nn.Module], run: Callable[[], Any], hook: Hook) -> None:
    """Run up to the first call of one of some modules, which a hook is told of; the module itself does not run."""

    def stop(*call: Any) -> None:
        hook(*call)
        raise ForwardLeft

    with suppress(ForwardLeft), called_before(modules, stop):
        run()


def first_call(
    modules: Iterable[nn.Module], run: Callable[[], Any]
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]] | None:
    """Run up to the first call of one of some modules: which, and its arguments; ``None`` where none is called.

    The module itself does not run. Its hook is gone afterwards: whoever looks at the arguments may call it.
    """
    found: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []
    run_up_to(modules, run, lambda *call: found.append(call))
    return found[0] if found else None


@contextmanager
def standing_in(model: nn.Module, forwards: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Inside the context, other functions stand in the place of some modules' forward: path → function."""
    modules = {path: model.get_submodule(path) for path in forwards}
    before = {path: vars(module).get("forward") for path, module in modules.items()}
    try:
        for path, module in modules.items():
            module.forward = forwards[path]
        yield
    finally:
        for path, module in modules.items():
            module.__dict__.pop("forward", None)
            if before[path] is not None:
                module.__dict__["forward"] = before[path]
