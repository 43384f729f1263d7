"""Rows of JSON-lines files that users bring: their fields read, with errors that name file, line and field."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from goldstick.errors import DataError
from goldstick.evaluation.data import Dataset, DataSource


@dataclass(frozen=True, kw_only=True)
class OwnRow:
    """A row and where it stands, for messages."""

    fields: Mapping[str, Any]
    place: str

    def text(self, name: str) -> str:
        """The text in a field. Raises DataError where it is missing, empty or no text."""
        value = self.fields.get(name)
        if name not in self.fields:
            present = ", ".join(list(self.fields)[:10])[:500]
            raise DataError(f"{self.place}: no field {name!r}, only {present or 'an empty row'}")
        if not isinstance(value, str):
            raise DataError(f"{self.place}: {name} must be text, not {shown(value)}")
        if not value.strip():
            raise DataError(f"{self.place}: {name} is empty")
        return value

    def prompt(self) -> str:
        """What the model goes on from: ``prompt`` as it is, or made of ``question`` and, where given, ``context``."""
        if "prompt" in self.fields:
            if other := [name for name in ("question", "context") if name in self.fields]:
                raise DataError(f"{self.place}: prompt says all; leave {other[0]} out, or leave prompt out")
            return self.text("prompt")
        before = f"{self.text('context')}\n\n" if self.fields.get("context") is not None else ""
        return f"{before}Question: {self.text('question')}\nAnswer:"


def own_rows(data: DataSource, path: Path, task: str) -> list[OwnRow]:
    """The rows of a JSON-lines file. Raises DataError where it is missing, empty, or a line is no JSON object."""
    dataset = Dataset(name=task, path=path)
    return [OwnRow(fields=row, place=f"{path}, line {line}") for line, row in data.numbered_rows(dataset)]


def stamped(protocol: str, path: Path) -> str:
    """The protocol with the first 8 digits of the file's SHA-256: results on different files do not compare."""
    with path.open("rb") as file:
        return f"{protocol}, file {hashlib.file_digest(file, 'sha256').hexdigest()[:8]}"
