"""Processes without the seconds in which they import: forked from one that has imported all.

A proof takes a fresh process, and five of its six seconds go to imports; tests make hundreds. What is fresh about it,
its command and what it sees of the current directory, has tests that start it as users do
(tests/core/test_fresh_process.py, tests/cli/test_hostile_folder.py).
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import IO, Any

import torch

from goldstick.calibration.data import template_worker as template_worker_module
from goldstick.core import fresh_process as fresh_process_module
from goldstick.core import fresh_start
from goldstick.core.fresh_process import fresh_environment
from tests.support import ranks

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.warm_imports"])


class WarmProcess:
    """As much of ``subprocess.Popen`` as is asked for, of a process that runs a function and then ends.

    Args:
        work: The function, importable.
        arguments: What it takes.
        variables: All variables of its environment.
        printed: Take what it prints, which is to be less than a pipe holds; else nobody sees that. The streams are of
            text then, and not of bytes.
    """

    def __init__(
        self, work: Callable[..., None], *arguments: object, variables: Mapping[str, str], printed: bool = False
    ) -> None:
        taken, given = _CONTEXT.Pipe(duplex=False)
        shown, shows = _CONTEXT.Pipe(duplex=False)
        said, says = _CONTEXT.Pipe(duplex=False)
        kind = "" if printed else "b"
        self.stdin: IO[Any] = os.fdopen(os.dup(given.fileno()), f"w{kind}")
        self.stdout: IO[Any] = os.fdopen(os.dup(shown.fileno()), f"r{kind}")
        self.stderr: IO[Any] = os.fdopen(os.dup(said.fileno()), f"r{kind}")
        everything = (taken, shows if printed else None, says, dict(variables), os.getcwd(), work, arguments)
        self._process = _CONTEXT.Process(target=_work, args=everything)
        self._process.start()
        for end in (taken, given, shown, shows, said, says):
            end.close()

    def __enter__(self) -> WarmProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.communicate()

    def poll(self) -> int | None:
        """The code with which it has ended, that of a signal negative."""
        return self._process.exitcode

    def wait(self) -> int:
        """The code with which it ends; what it says from now on of errors is not heard."""
        self.stderr.close()
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            assert self._process.pid is not None
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    @property
    def pid(self) -> int | None:
        """Its number."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """What :meth:`poll` says."""
        return self.poll()

    def communicate(self) -> tuple[Any, Any]:
        """Give it no more, and take what it prints and says of errors until it ends."""
        self.stdin.close()
        streams = [None if stream.closed else stream.read() for stream in (self.stdout, self.stderr)]
        self.stdout.close()
        self.wait()
        return streams[0], streams[1]


def fresh_process(module: str, *arguments: str) -> WarmProcess:
    """What ``goldstick.core.fresh_process`` starts for a module and what its ``main`` reads."""
    return WarmProcess(_run_module, module, arguments, variables=fresh_environment())


def rank(jobs: Sequence[Mapping[str, Any]], settings: Mapping[str, str]) -> WarmProcess:
    """What ``tests.support.ranks`` starts for jobs."""
    return WarmProcess(ranks.do, jobs, variables=settings)


def command(work: Callable[..., None], *arguments: object) -> WarmProcess:
    """A process of a function that runs a command, whose own fresh processes are forked, too."""
    return WarmProcess(_run_command, work, *arguments, variables=os.environ, printed=True)


def template_worker(seconds: int) -> WarmProcess:
    """What ``goldstick.calibration.data.chat_template`` starts, with so many seconds for a conversation."""
    return WarmProcess(_answer_templates, seconds, variables=fresh_environment(), printed=True)


def _answer_templates(seconds: int) -> None:
    template_worker_module.SECONDS = seconds
    template_worker_module.main()


def _run_command(work: Callable[..., None], *arguments: object) -> None:
    fresh_process_module._started = fresh_process  # type: ignore[assignment]
    work(*arguments)


def _run_module(module: str, arguments: tuple[str, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fresh_start.run(module, list(arguments))


def _work(
    taken: Connection, shows: Connection | None, says: Connection, variables: Mapping[str, str], folder: str,
    work: Callable[..., None], arguments: tuple[object, ...],
) -> None:  # fmt: skip
    """The forked process: it has the streams, the environment and the folder of one that was started."""
    os.dup2(taken.fileno(), 0)
    os.dup2(says.fileno(), 2)
    with open(os.devnull, "wb") as nothing:
        os.dup2((shows or nothing).fileno(), 1)
    for end in (taken, shows, says):
        if end is not None:
            end.close()
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    torch.set_num_threads(int(variables.get("OMP_NUM_THREADS", torch.get_num_threads())))
    work(*arguments)
