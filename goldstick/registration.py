"""Registration: after ``import goldstick``, transformers' ``from_pretrained`` runs checkpoints on goldstick's kernels.

Those of the native format always. Those of GPTQ, AWQ and compressed-tensors where the package that transformers would
hand them to is not installed, and it could only fail; where it is, the package serves them as it would without
goldstick, until :func:`register` says otherwise. Neither library is imported for it. If transformers is there already
it is told at once, otherwise when it imports its table of quantizers.
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
_QUANTIZER = "goldstick.hf.quantizer"
_SERVER = "goldstick.hf.foreign"

_asked_for: set[str] = set()


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
        _tell_transformers()


def register(*methods: str) -> None:
    """Let ``from_pretrained`` run checkpoints on goldstick's kernels though the package for them is installed.

    Args:
        methods: ``quant_method`` of formats that transformers needs a package for, such as ``gptq``; all where none is
            named.

    Raises:
        UsageError: There is no such method.
    """
    known = _packages()
    for method in methods:
        if method not in known:
            from goldstick.errors import UsageError

            raise UsageError(f"goldstick cannot serve the method {method!r}; it can serve {', '.join(sorted(known))}.")
    _asked_for.update(methods or known)
    register_with_transformers()


def register_with_transformers() -> None:
    """Make the methods that goldstick serves known to transformers, now or when it is imported."""
    if _TABLE in sys.modules:
        _tell_transformers()
    elif not any(isinstance(finder, _AfterTheTable) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTheTable())


def _tell_transformers() -> None:
    importlib.import_module(_QUANTIZER)
    unserved = {method for method, packages in _packages().items() if not all(map(_installed, packages))}
    methods = frozenset(unserved | _asked_for)
    if methods:
        importlib.import_module(_SERVER).serve(methods)


def _packages() -> dict[str, tuple[str, ...]]:
    """What transformers needs for checkpoints of a method, of goldstick's own formats."""
    from goldstick.formats import FORMATS

    own = [FORMATS[name] for name in FORMATS.own_names]
    return {storage.method: storage.packages for storage in own if storage.packages}


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
