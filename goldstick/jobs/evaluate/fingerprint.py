"""Fingerprint: what tells two tasks apart, their settings, code and data, in a hash."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from goldstick.evaluation.data import DataSource
from goldstick.evaluation.protocol import Task


class _UnknownError(Exception):
    """A value of a kind of which nothing is known that tells two of them apart."""


def task_fingerprint(task: Task, data: DataSource) -> str | None:
    """SHA-256 of a task's settings, the bytes of the code that it is written in, and the data as it reads them.

    The code of a task that is not goldstick's is that of its file, or of all Python files of its package; modules that
    these import are not looked at. None where something cannot be told: settings or data of a kind that is neither a
    number, a text, an array nor a collection of such (or a dataclass of them), or code that lies in no file.

    Raises:
        DataError: The data are missing or malformed.
    """
    digest = hashlib.sha256()
    try:
        for part in _of_value((type(task).__module__, type(task).__qualname__, task, task.protocol, task.load(data))):
            digest.update(part)
        for path in _sources(task, data):
            digest.update(f"{path.name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    except (_UnknownError, OSError):
        return None
    return digest.hexdigest()


def _sources(task: Task, data: DataSource) -> list[Path]:
    """The files whose bytes make what a task does, beside its data."""
    own = getattr(task, "files", None)
    found = sorted(own(data)) if callable(own) else []
    for module in dict.fromkeys(cls.__module__ for cls in type(task).__mro__):
        package = module.partition(".")[0]
        if package == "goldstick" or package in sys.stdlib_module_names - {"__main__"}:  # whose versions count
            continue
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None:
            raise _UnknownError
        folders = [Path(folder) for folder in getattr(sys.modules.get(package), "__path__", ())]
        found += sorted(path for folder in folders for path in folder.rglob("*.py")) or [Path(file)]
    return found


def _of_value(value: Any) -> Iterator[bytes]:
    """What a value is, in bytes that differ where values do; each part says its kind and length."""
    if value is None or isinstance(value, bool | int | float | complex | str | Path):
        yield _framed(type(value), repr(value).encode())
    elif isinstance(value, bytes):
        yield _framed(bytes, value)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        yield _framed(np.ndarray, f"{value.dtype} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        kind = f"{value.dtype} {tuple(value.shape)} ".encode()
        yield _framed(torch.Tensor, kind + flat.view(torch.uint8).numpy().tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        yield _framed(type(value), value.__class__.__qualname__.encode())
        yield from _of_value(fields)
    elif isinstance(value, Mapping):
        yield _framed(dict, str(len(value)).encode())
        for key, held in value.items():
            yield from _of_value(key)
            yield from _of_value(held)
    elif isinstance(value, list | tuple):
        yield _framed(list, str(len(value)).encode())
        for held in value:
            yield from _of_value(held)
    elif isinstance(value, set | frozenset):
        yield from _of_value(sorted(b"".join(_of_value(held)) for held in value))
    else:
        raise _UnknownError


def _framed(kind: type, content: bytes) -> bytes:
    return f"{kind.__name__} {len(content)} ".encode() + content
