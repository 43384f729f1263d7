"""Reports on disk: strict JSON, and files that are there whole or not at all."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from goldstick.errors import DataError, OutputError, UsageError

NON_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
"""How numbers JSON has no name for are written: as these strings, which mean nothing else in a report."""


def dump_json(data: Mapping[str, Any]) -> str:
    """Return indented JSON in the order of ``data``; UsageError naming what JSON cannot hold."""
    return json.dumps(_encode(data, ""), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def parse_json(text: str, what: str) -> Any:
    """Return what `dump_json` was given; DataError naming ``what`` and the line where it is not JSON."""
    try:
        if "\\ud" in text.lower():  # an escape may spell half a sign, which no file can be written with
            json.dumps(json.loads(text), ensure_ascii=False).encode()
        return _decode(json.loads(text))
    except json.JSONDecodeError as error:
        raise DataError(f"{what} is not JSON: {error.msg} in line {error.lineno}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what} is not JSON that goldstick reads: {error}") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` under a temporary name, flush it to the disk, then rename it to ``path``.

    Whoever reads ``path``, at any moment and after a loss of power, finds the former file or the whole new
    one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _fsync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def check_writable(path: Path, *, directory: bool = False) -> None:
    """Try whether a file can be written, before the work is done that gives its content.

    Args:
        path: The file, in a directory that is there; or, with ``directory``, a directory that may have to be made.
        directory: Whether it is a directory.

    Raises:
        OutputError: It cannot.
    """
    place = path.absolute() if directory else path.absolute().parent
    while directory and not place.exists():
        place = place.parent
    if not directory and path.is_dir():
        raise OutputError(f"{path} cannot be written: it is a directory. Name a file.")
    if not place.is_dir():
        raise OutputError(f"{path} cannot be written: {place} is no directory. Name another place.")
    trial = place / f".goldstick.{os.getpid()}.tmp"
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}. Name another place.") from error


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encode(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise UsageError(f"report{where}: the key {key!r} must be a string")
        return {key: _encode(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return next((name for name, number in NON_FINITE.items() if number == value), "NaN")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise UsageError(f"report{where}: {type(value).__name__} is not plain data, so it cannot be reported")


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value
