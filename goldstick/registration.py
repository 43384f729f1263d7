"""Registration: after ``import goldstick``, transformers' ``from_pretrained`` knows the native format.

Neither library is imported for it. If transformers is there already it is told at once, otherwise when it imports
its table of quantizers.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_TABLE = "transformers.quantizers.auto"
_QUANTIZER = "goldstick.formats.transformers_quantizer"


class _AfterTheTable(importlib.abc.MetaPathFinder):
    """Finds transformers' table of quantizers as everybody would, and adds goldstick's once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _TABLE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _ThenRegister(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        importlib.import_module(_QUANTIZER)


def register_with_transformers() -> None:
    """Make ``quant_method: goldstick`` known to transformers, now or when it is imported."""
    if _TABLE in sys.modules:
        importlib.import_module(_QUANTIZER)
    elif not any(isinstance(finder, _AfterTheTable) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTheTable())
