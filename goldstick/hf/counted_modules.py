"""A bound on the modules a config can make, so that a few bytes of it cannot make millions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from goldstick.errors import SourceError

#: Modules that any model may have, and how many more for each stored tensor: most modules have tensors of their own.
_ANY, _EACH = 500, 20


@contextmanager
def most_modules(tensors: int | None) -> Iterator[None]:
    """While this lasts, this thread makes no more modules than a checkpoint of so many tensors can need.

    Args:
        tensors: How many tensors the files hold; ``None`` sets no bound.

    Raises:
        SourceError: One module too many was made.
    """
    if tensors is None:
        yield
        return
    limit, made, thread = _ANY + _EACH * tensors, 0, threading.get_ident()

    def count(parent: nn.Module, name: str, module: nn.Module | None) -> None:
        nonlocal made
        made += threading.get_ident() == thread
        if made > limit:
            raise SourceError(
                f"config.json describes a model of more than {limit:,} modules, and its files hold {tensors:,} "
                "tensors: they do not belong together. Fetch the checkpoint again."
            )

    handle = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
