"""The journal of a search: what was measured so far, so that a search that is killed loses one measurement."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goldstick.core.json_files import dump_json, parse_json, read_text, write_atomically
from goldstick.core.notices import OtherSearchWarning
from goldstick.core.ranks import Ranks
from goldstick.errors import DataError, OutputError


class Journal:
    """Numbers by key, on disk as soon as they are known.

    Args:
        path: The file; in memory alone where ``None``.
        identity: What the numbers are of. A file of another search is put aside, for its command to go on with.
        ranks: Who measures together: the first has the file, and tells the others what is known.
    """

    def __init__(self, path: Path | None, identity: Mapping[str, Any], ranks: Ranks | None = None) -> None:
        ranks = ranks or Ranks()
        path = path if ranks.first else None
        self._path = path
        self._identity = hashlib.sha256(dump_json(identity).encode()).hexdigest()
        self._known: dict[str, float | list[float]] = {}
        if path is not None:
            _put_aside(path, self._identity)
            self._known = _read(path).get("known", {})
        self._known = ranks.of(self._known)

    def get(self, key: str) -> Any:
        """The number, or ``None``."""
        return self._known.get(key)

    def keep(self, key: str, value: float | list[float]) -> None:
        """Keep a number; on disk when this returns."""
        self._known[key] = value
        self._write()

    def keep_all(self, values: Mapping[str, float | list[float]]) -> None:
        """Keep several at once."""
        self._known.update(values)
        self._write()

    def part(self, name: str) -> Journal:
        """Numbers of something else that belongs to it, in the same file."""
        return JournalPart(self, name)

    def _write(self) -> None:
        if self._path is not None:
            content = {"identity": self._identity, "known": self._known}
            write_atomically(self._path, dump_json(content).encode(), replace=True)


class JournalPart(Journal):
    """Numbers by key that lie in another journal.

    Args:
        whole: The journal.
        name: Tells them from others in it.
    """

    def __init__(self, whole: Journal, name: str) -> None:
        self._whole, self._name = whole, name

    def get(self, key: str) -> Any:
        """As the journal does."""
        return self._whole.get(f"{self._name} {key}")

    def keep(self, key: str, value: float | list[float]) -> None:
        """As the journal does."""
        self._whole.keep(f"{self._name} {key}", value)

    def keep_all(self, values: Mapping[str, float | list[float]]) -> None:
        """As the journal does."""
        self._whole.keep_all({f"{self._name} {key}": value for key, value in values.items()})


def refuse_foreign(path: Path | None) -> None:
    """Refuse to begin where something else than a journal lies, which would be replaced.

    Raises:
        OutputError: It does.
    """
    if path is not None and path.exists() and not _read(path):
        raise OutputError(
            f"{path}, where a search keeps what it has measured, is something else: move it, or choose another -o."
        )


def _read(path: Path) -> dict[str, Any]:
    """What a journal holds; nothing where there is none, or it is damaged: everything is measured again."""
    try:
        found = parse_json(read_text(path), str(path))
    except DataError:
        return {}
    sound = isinstance(found, dict) and isinstance(found.get("identity"), str) and isinstance(found.get("known"), dict)
    return found if sound else {}


def _put_aside(path: Path, identity: str) -> None:
    """Put what another search has measured beside a journal, and what this one has in its place."""
    other = _read(path)
    if other.get("identity") not in (None, identity) and other["known"]:
        kept = _beside(path, other["identity"])
        os.replace(path, kept)
        warnings.warn(
            f"Another search has measured for this -o, of other options, text, model or versions. It lies in "
            f"{kept}, and its command goes on with it; remove it if you do not want it.",
            OtherSearchWarning,
            stacklevel=2,
        )
    if (mine := _beside(path, identity)).is_file() and not _read(path).get("known"):
        os.replace(mine, path)


def _beside(path: Path, identity: str) -> Path:
    return path.with_name(f"{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}{path.suffix}")


def states_of(directory: Path) -> dict[str, list[int]]:
    """Name of each file that a model is made of → its size and the time of its last change."""
    return {
        path.name: [path.stat().st_size, path.stat().st_mtime_ns]
        for path in sorted(directory.glob("*"))
        if path.suffix in (".safetensors", ".json", ".gguf")
    }
