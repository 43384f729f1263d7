"""What a fresh process runs first, as a script: ``main`` of a module of goldstick, from where its parent has goldstick.

Arguments: the folders of the package ``goldstick``, joined by the separator of paths; the module; and what its ``main``
reads itself. In the place of that, ``AHEAD`` lets the module be imported and its ``prepare`` run, and only then comes
what ``main`` reads, as a line of JSON on standard input.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import queue
import signal
import sys
import threading
from typing import NoReturn

AHEAD = "--ahead"


def _import_goldstick(folders: list[str]) -> None:
    """Import the parent's goldstick, wherever else there is one, without a folder to import other things from."""
    file = next(path for folder in folders if os.path.isfile(path := os.path.join(folder, "__init__.py")))
    spec = importlib.util.spec_from_file_location("goldstick", file, submodule_search_locations=folders)
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["goldstick"] = package
    spec.loader.exec_module(package)


def _first_line(lines: queue.SimpleQueue[bytes]) -> None:
    """Hand on the first line of standard input; where its end comes before, the parent is gone, and so is this."""
    line = b""
    while not line.endswith(b"\n"):
        if not (read := os.read(0, 1)):
            os._exit(1)
        line += read
    lines.put(line)


def run(module: str, arguments: list[str]) -> NoReturn:
    """Import a module and end with what its ``main`` returns, which reads ``arguments``, or what is sent ``AHEAD``."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    if ahead := arguments == [AHEAD]:
        threading.Thread(target=_first_line, args=[lines], daemon=True).start()
    work = importlib.import_module(module)
    if ahead:
        work.prepare()
        arguments = json.loads(lines.get())
    sys.argv[:] = [module, *arguments]
    sys.exit(work.main())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the parent answers
    _, _folders, _module, *_rest = sys.argv
    _import_goldstick(_folders.split(os.pathsep))
    run(_module, _rest)
