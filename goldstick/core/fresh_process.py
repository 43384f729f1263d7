"""A fresh process: this interpreter and this goldstick, with nothing imported from the current directory.

What it imports is looked for where this process was told to look by its installation and PYTHONPATH, never in the
current directory, in which models of strangers may lie. Only goldstick itself comes from where its parent has it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import goldstick
from goldstick.core import fresh_start

#: Where Python and the dynamic loader look for what they load.
_FOLDERS = ("PYTHONPATH", "LD_LIBRARY_PATH")


def fresh_command(module: str, *arguments: str) -> list[str]:
    """The command that runs ``main`` of a module of goldstick, to be started in :func:`fresh_environment`."""
    folders = os.pathsep.join(os.path.abspath(folder) for folder in goldstick.__path__)
    return [sys.executable, "-P", os.path.abspath(fresh_start.__file__), folders, module, *arguments]


def fresh_environment() -> dict[str, str]:
    """This process's, less the empty parts of lists of folders, which mean the current directory.

    ``LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/lib`` leaves one where there was no such variable.
    """
    lists = {name: os.environ[name].split(os.pathsep) for name in _FOLDERS if name in os.environ}
    return {**os.environ, **{name: os.pathsep.join(filter(None, parts)) for name, parts in lists.items()}}


def run_module(module: str, *arguments: str) -> str | None:
    """Run ``main`` of a module in a fresh process, where it calls :func:`end_with_the_parent`.

    Returns:
        ``None`` where it ended well, else its last words.
    """
    with subprocess.Popen(
        fresh_command(module, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=fresh_environment(),
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


def end_with_the_parent() -> None:
    """Let this process end when that which runs it does, however that is: standard input is then at its end."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
