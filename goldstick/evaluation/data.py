"""Where evaluation data come from: a local directory first, then the Hugging Face hub with a bounded wait."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from goldstick.core.json_files import unique_keys
from goldstick.errors import DataError, UsageError
from goldstick.evaluation.hub import HUB_TIMEOUT, HubDataset, load_from_hub, require_on_hub

Row = TypeVar("Row")
Found = TypeVar("Found")

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One data set's homes.

    Args:
        name: what messages call it.
        files: the local files it may be in, relative to the data directory, best first; glob patterns are
            allowed and each is looked for as it is and with ``.gz`` behind it.
        hub: where it is on the hub, one entry per configuration; empty where it is not there.
        path: a file of the user's, wherever it lies, which is then the data set's only home.
    """

    name: str
    files: tuple[str, ...] = ()
    hub: tuple[HubDataset, ...] = ()
    path: Path | None = None


class DataSource:
    """Finds and reads data sets, each once.

    Args:
        data_dir: the directory with local copies, or None for the hub alone.
        hub_timeout: how many seconds the hub has to answer. The download that follows an answer has no limit.
    """

    def __init__(self, data_dir: Path | str | None = None, *, hub_timeout: float = HUB_TIMEOUT) -> None:
        self.data_dir = None if data_dir is None else Path(data_dir)
        self.hub_timeout = hub_timeout
        self._read: dict[tuple[str, Dataset], list[Any]] = {}
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise UsageError(f"the data directory {self.data_dir} does not exist")

    def find(self, dataset: Dataset) -> Path | None:
        """Return the local file that holds ``dataset``, or None; raise DataError where a file of the user's is none."""
        if dataset.path is not None:
            require_file(dataset.path, dataset.name)
            return dataset.path
        if self.data_dir is None:
            return None
        for pattern in dataset.files:
            for candidate in (pattern, pattern + ".gz"):
                found = sorted(path for path in self.data_dir.glob(candidate) if path.is_file())
                if found:
                    return found[0]
        return None

    def rows(self, dataset: Dataset, required: Sequence[str] = ()) -> list[Mapping[str, Any]]:
        """Return the rows of a JSON-lines file or of the hub; each must have the ``required`` fields."""
        rows = self.numbered_rows(dataset)
        for line, row in rows:
            missing = [name for name in required if name not in row]
            if missing:
                present = ", ".join(list(row)[:10])[:500]
                raise DataError(f"{self._origin(dataset)}, line {line}: no field {missing[0]!r}, only {present}")
        return [row for _, row in rows]

    def numbered_rows(self, dataset: Dataset) -> list[tuple[int, Mapping[str, Any]]]:
        """Return (line, row) of a JSON-lines file, or (place from 1, row) of the hub."""
        key = ("rows", dataset)
        if key not in self._read:
            path = self.find(dataset)
            rows = self._rows_from_hub(dataset) if path is None else list(_json_lines(path))
            if not rows:
                raise DataError(f"{self._origin(dataset)}: the file holds no rows")
            self._read[key] = rows
        return list(self._read[key])

    def lines(self, dataset: Dataset) -> list[str]:
        """Return the lines of a local text file, ends kept, or the ``text`` fields of the hub's rows."""
        key = ("lines", dataset)
        if key not in self._read:
            path = self.find(dataset)
            if path is None:
                self._read[key] = [str(row["text"]) for row in self.rows(dataset, ["text"])]
            else:
                self._read[key] = list(_read_lines(path))
        return list(self._read[key])

    def document(self, path: Path) -> Any:
        """Return the JSON document in the local file ``path``."""
        return _parsed("".join(_read_lines(path)), str(path))

    def require(self, dataset: Dataset) -> None:
        """Raise the DataError of reading ``dataset`` where it is neither here nor on the hub; nothing is read."""
        if self.find(dataset) is None:
            self._from_hub(dataset, require_on_hub)

    def _origin(self, dataset: Dataset) -> str:
        return str(self.find(dataset) or dataset.name)

    def _rows_from_hub(self, dataset: Dataset) -> list[tuple[int, Mapping[str, Any]]]:
        rows = [row for part in self._from_hub(dataset, load_from_hub) for row in part]
        return list(enumerate(rows, start=1))

    def _from_hub(self, dataset: Dataset, ask: Callable[[HubDataset, float], Found]) -> list[Found]:
        """What each part of a data set on the hub gives; DataError says what to provide here where it gives nothing."""
        local = "give the path of a local file instead"
        if dataset.files:
            local = f"give --data-dir DIR with DIR/{dataset.files[0]} (or .gz)"
        if dataset.files and self.data_dir is not None:
            local = f"there is no {dataset.files[0]} (or .gz) under --data-dir {self.data_dir}"
        if not dataset.hub:
            raise DataError(f"{dataset.name}: this data set is read from a local file only; {local}")
        try:
            return [ask(hub, self.hub_timeout) for hub in dataset.hub]
        except DataError as error:
            raise DataError(f"{dataset.name}: {error}; {local}") from error


def require_file(path: Path, what: str) -> None:
    """Raise DataError, naming ``what`` it is for, where there is no file of that path."""
    if path.is_dir():
        raise DataError(f"{what}: {path} is a folder; name a file in it")
    if not path.is_file():
        raise DataError(f"{what}: there is no file {path.absolute()}; a path counts from the folder one works in")


def require_text(row: Mapping[str, Any], names: Sequence[str], place: str) -> None:
    """Raise DataError, naming the place, where one of the fields of a row is no text."""
    for name in names:
        if not isinstance(row[name], str):
            raise DataError(f"{place}: {name} must be text, not {type(row[name]).__name__}")


def evenly_spaced(rows: Sequence[Row], limit: int | None) -> list[Row]:
    """Return ``limit`` of ``rows`` at equal distances, all of them where ``limit`` is None or larger.

    For files grouped by subject or article, whose first rows are about one thing.
    """
    if limit is None or limit >= len(rows):
        return list(rows)
    return [rows[index * len(rows) // limit] for index in range(limit)]


def _read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, gzip-compressed where its name says so; a byte order mark is none of it."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8-sig") as file:
                yield from file
        else:
            with path.open(encoding="utf-8-sig") as file:
                yield from file
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (line number, row) of a JSON-lines file; blank lines are left out."""
    for number, line in enumerate(_read_lines(path), start=1):
        if not line.strip():
            continue
        row = _parsed(line, f"{path}, line {number}")
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: a row must be a JSON object, not {type(row).__name__}")
        yield number, row


def _parsed(text: str, place: str) -> Any:
    """What a JSON text says; DataError, naming the place, where it says nothing, or what is no text, or twice."""
    try:
        value = json.loads(text, object_pairs_hook=unique_keys)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}" if "\n" in text.strip() else f"column {error.colno}"
        raise DataError(f"{place}: not JSON ({error.msg} at {where})") from error
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise DataError(
            f"{place}: {half!r} is half of a character (a lone surrogate), which no tokenizer reads"
        ) from error
    except (ValueError, RecursionError) as error:  # a key twice; thousands of digits; lists in lists in lists
        raise DataError(f"{place}: not JSON that is read here ({error})") from error
    return value
