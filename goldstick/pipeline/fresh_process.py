"""A fresh process: this interpreter and this goldstick, with nothing imported from the current directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import goldstick
from goldstick.pipeline import fresh_start

#: Where Python and the dynamic loader look for what they load.
_FOLDERS = ("PYTHONPATH", "LD_LIBRARY_PATH")


def run_module(module: str, *arguments: str) -> str | None:
    """Run ``main`` of a module of goldstick in a fresh process, which ends when this one does.

    What it imports is looked for where this process was told to look by its installation and PYTHONPATH, never in the
    current directory, in which models of strangers may lie. Only goldstick itself comes from where it is imported from
    here.

    Returns:
        ``None`` where it ended well, else its last words.
    """
    folders = os.pathsep.join(os.path.abspath(folder) for folder in goldstick.__path__)
    command = [sys.executable, "-P", os.path.abspath(fresh_start.__file__), folders, module, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=_environment()
    ) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.read().decode(errors="backslashreplace")
            code = process.wait()
        except BaseException:
            process.kill()
            raise
    if code == 0:
        return None
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}" + (
            ": the memory may not have sufficed." if -code == signal.SIGKILL else "."
        )
    return (said.strip().splitlines() or [f"it ended with code {code}"])[-1]


def _environment() -> dict[str, str]:
    """This process's, less the empty parts of lists of folders, which mean the current directory.

    ``LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/lib`` leaves one where there was no such variable.
    """
    lists = {name: os.environ[name].split(os.pathsep) for name in _FOLDERS if name in os.environ}
    return {**os.environ, **{name: os.pathsep.join(filter(None, parts)) for name, parts in lists.items()}}
