"""A task of one's own in a Python file: ``FILE.py`` or ``FILE.py:NAME``."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from goldstick.errors import UsageError
from goldstick.evaluation.data import require_file
from goldstick.evaluation.protocol import Task, why_no_task

#: Begins the names under which the modules of such files are known.
MODULE_PREFIX = "goldstick_task_file_"


def task_of_file(path: Path, name: str = "") -> Task:
    """The task in a Python file, whose code is run.

    Args:
        path: The file.
        name: A variable of it, the ``name`` of a task in it, or a class to make one of; where empty, the file must hold
            one task, or no task and one class that makes one without arguments.

    Raises:
        DataError: There is no such file.
        UsageError: It cannot be run, or it holds no such task.
    """
    require_file(path, f"{path}:{name}" if name else str(path))
    module = _module(path)
    if name and hasattr(module, name):
        return _checked(_made(getattr(module, name), path), f"{path}:{name}")
    found = _tasks(module)
    if name:
        named = [task for task in found.values() if task.name == name]
        if not named:
            found = found or _tasks_of_classes(module, path)
            raise UsageError(f"{path}: nothing in it is called {name!r}; the tasks in it are {_listed(found)}")
        return named[0]
    if not found:
        found = _tasks_of_classes(module, path)
    if len(found) != 1:
        raise UsageError(
            f"{path} holds {len(found)} tasks ({_listed(found)}); name one: {path}:NAME"
            if found
            else f"{path} holds no task: an object with name, protocol, models, load and run; see docs/evaluation.md"
        )
    return next(iter(found.values()))


def _module(path: Path) -> ModuleType:
    """The file as a module, run once for each content that it has.

    Without the bytecode that Python would keep beside it, which does not see a change within a second.
    """
    try:
        content = path.read_bytes()
        digest = hashlib.sha256(str(path.resolve()).encode() + b"\n" + content).hexdigest()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    name = MODULE_PREFIX + digest[:16]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # its name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for the types of their fields
    try:
        exec(compile(content, str(path.absolute()), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:  # whatever the file does
        del sys.modules[name]
        if not is_failure(error, path):
            raise
        raise UsageError(f"{path} cannot be run{failure(error, path)}") from error
    return module


def _tasks(module: ModuleType) -> dict[str, Task]:
    """The tasks among a module's variables, each once."""
    found = {name: value for name, value in vars(module).items() if why_no_task(value) is None}
    return {name: value for name, value in found.items() if name == next(n for n, v in found.items() if v is value)}


def _tasks_of_classes(module: ModuleType, path: Path) -> dict[str, Task]:
    """Tasks that the module's own classes make without arguments."""
    classes = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and callable(getattr(value, "run", None))
    }
    made = {name: _made(value, path) for name, value in classes.items()}
    return {name: value for name, value in made.items() if why_no_task(value) is None}


def _made(found: Any, path: Path) -> Any:
    """An object of a class, anything else as it is."""
    if not isinstance(found, type):
        return found
    try:
        return found()
    except (Exception, SystemExit) as error:
        if not is_failure(error, path):
            raise
        raise UsageError(
            f"{path}: {found.__name__}() makes no task{failure(error, path)}; give it defaults, or write a variable "
            "with an object of it"
        ) from error


def _checked(found: Any, where: str) -> Task:
    reason = why_no_task(found)
    if reason:
        raise UsageError(f"{where} is no task: {reason}; see docs/evaluation.md")
    task: Task = found
    return task


def _listed(found: Mapping[str, Task]) -> str:
    return ", ".join(found) or "none"


def is_failure(error: Exception | SystemExit, path: Path | None) -> bool:
    """Whether it is a failure of the code in a file: any error, and an exit that the file itself asks for, which would
    end the program in silence. A signal's comes from elsewhere."""
    return isinstance(error, Exception) or (path is not None and _lines(error, path)[-1:] not in ([], [None]))


def _lines(error: BaseException, path: Path) -> list[int | None]:
    """Where an error passed through, from the outside in: lines of the file, and ``None`` for other places."""
    found, trace = list[int | None](), error.__traceback__
    while trace is not None:
        inside = Path(trace.tb_frame.f_code.co_filename) == path.absolute()
        found.append(trace.tb_lineno if inside else None)
        trace = trace.tb_next
    return found


def failure(error: BaseException, path: Path | None = None) -> str:
    """``, line 3 (TypeError: …)``: what went wrong in code of the user's, and in which line of the file."""
    lines = [] if path is None else [line for line in _lines(error, path) if line is not None]
    line = lines[-1] if lines else None
    if isinstance(error, SyntaxError) and error.lineno is not None:
        line = error.lineno
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return f"{f', line {line}' if line is not None else ''} ({reason})"
