"""Commands in a process of their own, which is cut short."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "goldstick.cli", "quantize"]


def refused_where_files_end(limit: int, *arguments: str) -> str:
    """What ``quantize`` says, in one line, where no file may grow beyond ``limit`` bytes."""
    process = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert process.returncode == 1, process.stderr
    assert "Traceback" not in process.stderr
    message = process.stderr[process.stderr.index("Error: ") :]
    assert message.count("\n") == 1
    return message


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
