"""A fresh process: this interpreter and this goldstick, with nothing imported from the current directory.

What it imports is looked for where this process was told to look by its installation and PYTHONPATH, never in the
current directory, in which models of strangers may lie. Only goldstick itself comes from where its parent has it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
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


_ahead: dict[str, subprocess.Popen[bytes]] = {}


def start_ahead(module: str) -> None:
    """Start the process of the next :func:`run_module` of a module, which imports it and runs its ``prepare``.

    For a command whose own start leaves processors idle, and that is sure to need it. It ends with this process.
    """
    if module not in _ahead:
        _ahead[module] = _started(module, fresh_start.AHEAD)
        atexit.register(_end, module)


def _end(module: str) -> None:
    if process := _ahead.pop(module, None):
        process.kill()
        process.communicate()


def _started(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        fresh_command(module, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=fresh_environment(),
    )


def run_module(module: str, *arguments: str) -> str | None:
    """Run ``main`` of a module in a fresh process, where it calls :func:`end_with_the_parent`.

    One that was started ahead (:func:`start_ahead`) is taken, where there is one.

    Returns:
        ``None`` where it ended well, else its last words.
    """
    ahead = _ahead.pop(module, None)
    with ahead or _started(module, *arguments) as process:
        try:
            assert process.stdin is not None and process.stderr is not None
            if ahead is not None:
                with contextlib.suppress(BrokenPipeError):  # it has ended, and says why
                    process.stdin.write(json.dumps(arguments).encode() + b"\n")
                    process.stdin.flush()
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
