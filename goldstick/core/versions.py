"""Versions of what a result depends on."""

from __future__ import annotations

import importlib.metadata
import platform


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    from goldstick import __version__

    packages = ("torch", "transformers", "safetensors", "numpy")
    return {
        "goldstick": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }
