"""goldstick: post-training compression for PyTorch that proves its results.

The names below are the public interface; everything is imported when it is first used.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from goldstick.registration import register, register_with_transformers

if TYPE_CHECKING:
    from goldstick.algorithms import RTN
    from goldstick.api import accelerate, apply, evaluate, export, load, optimize, quantize, search, set_input_bits
    from goldstick.core.grid import Grid
    from goldstick.core.scheme import Scheme
    from goldstick.errors import GoldstickError
    from goldstick.planning import plan
    from goldstick.recipes.recipe import Recipe
    from goldstick.structure.targets import Targets

try:
    __version__ = importlib.metadata.version("goldstick")
except importlib.metadata.PackageNotFoundError:
    __version__ = "0.0.0+source"

_HOMES = {
    "RTN": "goldstick.algorithms",
    "GoldstickError": "goldstick.errors",
    "Grid": "goldstick.core.grid",
    "Recipe": "goldstick.recipes.recipe",
    "Scheme": "goldstick.core.scheme",
    "Targets": "goldstick.structure.targets",
    "accelerate": "goldstick.api",
    "apply": "goldstick.api",
    "evaluate": "goldstick.api",
    "export": "goldstick.api",
    "load": "goldstick.api",
    "optimize": "goldstick.api",
    "plan": "goldstick.planning",
    "quantize": "goldstick.api",
    "search": "goldstick.api",
    "set_input_bits": "goldstick.api",
}

#: Modules that hold more of it.
_MODULES = ("api", "errors")

__all__ = [
    "RTN",
    "GoldstickError",
    "Grid",
    "Recipe",
    "Scheme",
    "Targets",
    "__version__",
    "accelerate",
    "apply",
    "evaluate",
    "export",
    "load",
    "optimize",
    "plan",
    "quantize",
    "register",
    "search",
    "set_input_bits",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"goldstick.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'goldstick' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_with_transformers()
