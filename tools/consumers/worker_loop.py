"""What every worker does around its checkpoints. Any Python imports it from beside the worker; nothing of goldstick.

``PYTHON worker.py SPEC.json``: for each of ``checkpoints`` a line of JSON goes to ``out``, with what the program
answered and the load of the machine then, or the error it ended with. A line that begins comes first, so that whoever
reads knows where a process died.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def go_through(answered: Callable[[str, dict[str, Any]], dict[str, Any]]) -> None:
    """Ask for each checkpoint of the specification, given its directory and the specification."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    with Path(spec["out"]).open("a", buffering=1) as out:
        for name, directory in spec["checkpoints"].items():
            print(json.dumps({"begins": name}), file=out)
            try:
                found = answered(directory, spec) | {"load": os.getloadavg()[0]}
            except Exception as error:  # whatever a runtime raises is its answer
                found = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps({"name": name, **found}), file=out)
            gc.collect()
