"""Versions of what a result depends on."""

from __future__ import annotations

import functools
import importlib.metadata
import platform


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    from goldstick import __version__

    return {"goldstick": __version__, "python": platform.python_version(), **_of_libraries()}


@functools.cache
def _of_libraries() -> dict[str, str]:
    """Read once: each takes milliseconds, and what is imported is not exchanged while a process runs."""
    return {name: importlib.metadata.version(name) for name in ("torch", "transformers", "safetensors", "numpy")}
