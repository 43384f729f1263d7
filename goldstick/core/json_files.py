"""Reports on disk: strict JSON, and files that are there whole or not at all."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goldstick.core.whole_file import whole_file
from goldstick.errors import DataError, OutputError, UsageError

NON_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
"""How numbers JSON has no name for are written: as these strings, which mean nothing else in a report."""

_SURROGATE = re.compile("[\ud800-\udfff]")


_OTHER_NAME = "Choose another name, or give --overwrite."


def dump_json(data: Mapping[str, Any]) -> str:
    """Return indented JSON in the order of ``data``; UsageError naming what JSON cannot hold.

    Bytes of file names that are not UTF-8, which Python reads as lone surrogates, are escaped as such.
    """
    text = json.dumps(_encode(data, ""), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def parse_json(text: str, what: str) -> Any:
    """Return what `dump_json` was given; DataError naming ``what`` and the line where it is not JSON."""
    try:
        value = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return _decode(value)
    except json.JSONDecodeError as error:
        raise DataError(f"{what} is not JSON: {error.msg} in line {error.lineno}") from error
    except UnicodeEncodeError as error:
        raise DataError(f"{what} holds {error.object[error.start]!r}, half of a character, in a text") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what} is not JSON that goldstick reads: {str(error)[:200]}") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object of its pairs, for ``object_pairs_hook``; ValueError where a key occurs twice.

    Python's parser would keep the last.
    """
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:100]!r} occurs twice; leave one of them out")
    return table


def read_text(path: Path, limit: int | None = None) -> str:
    """The text of a file that lies in a folder.

    Raises:
        DataError: It cannot be read, has more than ``limit`` bytes, or is no plain file: a pipe under its name would be
            waited for without an end.
    """
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: cannot be read (it is no plain file)")
        if limit is not None and path.stat().st_size > limit:
            raise DataError(f"{path} is implausibly large, with more than {limit:,} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def write_atomically(path: Path, content: bytes, *, replace: bool = True) -> None:
    """Write a file that is there whole or not at all; see :func:`goldstick.core.whole_file.whole_file`.

    Raises:
        OutputError: It cannot be written, or exists and ``replace`` is false.
    """
    try:
        with whole_file(path, replace=replace) as file:
            file.write(content)
    except FileExistsError as error:
        raise OutputError(f"{path} came to exist in the meantime and was left alone. {_OTHER_NAME}") from error
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def check_writable(path: Path, *, overwrite: bool = False, directory: bool = False) -> None:
    """Try whether a file can be written, before the work is done that gives its content.

    Args:
        path: The file, in a directory that is there; or, with ``directory``, a directory that may have to be made.
        overwrite: Whether a file may be replaced.
        directory: Whether it is a directory.

    Raises:
        OutputError: It cannot.
    """
    place = path.absolute() if directory else path.absolute().parent
    while directory and not place.exists():
        place = place.parent
    if not directory:
        _refuse_existing(path, overwrite)
    if not place.is_dir():
        raise OutputError(f"{path} cannot be written: {place} is no directory. Name another place.")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}. Name another place.") from error


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if not os.path.lexists(path):
        return
    if path.is_dir():
        raise OutputError(f"{path} cannot be written: it is a directory. Name a file.")
    if path.is_symlink() or not path.is_file():
        raise OutputError(f"{path} is no plain file, so it will not be replaced. Name another file.")
    if not overwrite:
        raise OutputError(f"{path} exists already. {_OTHER_NAME}")


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
