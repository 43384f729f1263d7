"""What a fresh process runs first, as a script: ``main`` of a module of goldstick, from where its parent has goldstick.

Arguments: the folders of the package ``goldstick``, joined by the separator of paths; the module; and what its ``main``
reads itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys


def _import_goldstick(folders: list[str]) -> None:
    """Import the parent's goldstick, wherever else there is one, without a folder to import other things from."""
    file = next(path for folder in folders if os.path.isfile(path := os.path.join(folder, "__init__.py")))
    spec = importlib.util.spec_from_file_location("goldstick", file, submodule_search_locations=folders)
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["goldstick"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the parent answers
    _, _folders, _module, *_rest = sys.argv
    _import_goldstick(_folders.split(os.pathsep))
    sys.argv[:] = [_module, *_rest]
    sys.exit(importlib.import_module(_module).main())
