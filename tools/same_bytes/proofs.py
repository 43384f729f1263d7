"""Proofs without the seconds in which a fresh Python imports everything: their processes are forks of this one."""

from __future__ import annotations

import importlib
import io
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class _Fork:
    """What stands in for ``Popen`` where this interpreter is to run a module of goldstick: it has run already."""

    def __init__(self, words: Sequence[str]) -> None:
        self.args = words
        self.stdin = self.stdout = None
        with tempfile.TemporaryFile() as errors:
            self.returncode = _run_in_a_fork(list(words), errors.fileno())
            errors.seek(0)
            self.stderr = io.BytesIO(errors.read())

    def __enter__(self) -> _Fork:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def communicate(self, *_: Any, **__: Any) -> tuple[str, str]:
        """No output, and what was said to the standard error."""
        return "", self.stderr.read().decode()

    def wait(self, *_: Any) -> int:
        """The exit code."""
        return self.returncode

    poll = wait


@contextmanager
def forked() -> Iterator[None]:
    """Run every module of goldstick that is to run in a process of its own in a fork; other commands as ever."""
    start = subprocess.Popen

    def popen(command: Any, *arguments: Any, **options: Any) -> Any:
        words = [str(word) for word in command] if isinstance(command, list | tuple) else [""]
        if words[0] == sys.executable and any(word.startswith("goldstick.") for word in words):
            return _Fork(words)
        return start(command, *arguments, **options)

    subprocess.Popen = popen  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        subprocess.Popen = start  # type: ignore[misc]


def _run_in_a_fork(words: list[str], errors: int) -> int:
    """The exit code of ``python -m goldstick.x …``, or of ``goldstick.x.main()`` where another script calls that."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        os.dup2(errors, 2)
        os.dup2(os.pipe()[0], 0)  # what reads its standard input to end with its parent would end with a null one
        place = next(place for place, word in enumerate(words) if word.startswith("goldstick."))
        sys.argv = words[place:]
        if "-m" in words:
            runpy.run_module(words[place], run_name="__main__", alter_sys=True)
            code = 0
        else:
            code = int(importlib.import_module(words[place]).main() or 0)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
