"""Rows that name images or recordings, with what belongs to them: a transcript, a text, a conversation."""

from __future__ import annotations

import csv
import glob
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from goldstick.calibration.data.chat import some_names, speaker_role
from goldstick.calibration.data.suffixes import AUDIO, IMAGES
from goldstick.errors import DataError
from goldstick.evaluation.data import Dataset, DataSource

IMAGE_FIELDS = ("image", "images", "image_path", "image_file")
AUDIO_FIELDS = ("audio", "audio_filepath", "audio_path", "audio_file")
FILE_FIELDS = ("file_name", "file", "path")
TEXT_FIELDS = ("text", "transcript", "transcription", "sentence", "caption", "prompt")
CONVERSATIONS = ("messages", "conversations")

_FIRST_ROWS = 64
#: What stands for an image in rows of {from, value}.
_PLACEHOLDER = "<image>"

Part = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class MediaRow:
    """Images or recordings that make one sample, and what belongs to them.

    Attributes:
        place: File and row, for errors.
        images: Files of images, in their order.
        audio: Files of sound, in their order.
        text: What is said or asked, where it is one text.
        messages: (role, parts) of a conversation; a part is a text, or stands for the next image or recording.
    """

    place: str
    images: tuple[Path, ...] = ()
    audio: tuple[Path, ...] = ()
    text: str | None = None
    messages: tuple[tuple[str, tuple[Part, ...]], ...] = ()


def names_media(path: Path) -> bool:
    """Whether the first rows of a JSON-lines file name images or recordings; false where it is another kind of file."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if plain.suffix != ".jsonl":
        return False
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
            rows = [json.loads(line) for line in islice(file, _FIRST_ROWS) if line.strip()]
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):  # those who read it as text say what is wrong
        return False
    return any(isinstance(row, dict) and _media_fields(row) for row in rows)


def read_media_rows(path: Path, text_field: str | None) -> Iterator[MediaRow]:
    """The rows of a .jsonl, .csv or .tsv file; paths in it are relative to its folder.

    Raises:
        DataError: The file cannot be read, holds no rows, or a row names no file, one that is not there, or no text.
    """
    rows = _table(path) if path.suffix.lower() in (".csv", ".tsv") else _json_rows(path)
    count = 0
    for number, row in rows:
        count += 1
        yield _media_row(row, path.parent, f"{path}, line {number}", text_field)
    if not count:
        raise DataError(f"{path}: it holds no rows")


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    local = Dataset(name=str(path), files=(glob.escape(path.name),))
    yield from DataSource(path.parent).numbered_rows(local)


def _table(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            names: list[str] | None = None
            before = 0  # a row in quotes may have many lines, of which the first is its place
            for values in table:
                line, before = before + 1, table.line_num
                if names is None:
                    names = values
                elif values:
                    yield line, {name: value for name, value in zip(names, values, strict=False) if value}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a table ({error}); its first line names the columns") from error


def _media_row(row: Mapping[str, Any], folder: Path, place: str, text_field: str | None) -> MediaRow:
    images = [_file(value, folder, place) for value in _values(row, IMAGE_FIELDS)]
    audio = [_file(value, folder, place) for value in _values(row, AUDIO_FIELDS)]
    for value in _values(row, FILE_FIELDS) if not images and not audio else ():
        file = _file(value, folder, place)
        (images if file.suffix.lower() in IMAGES else audio).append(file)
    spoken = next((row[name] for name in CONVERSATIONS if row.get(name) is not None), None)
    if text_field is not None and row.get(text_field) is None and not isinstance(spoken, list):
        raise DataError(f"{place}: no field {text_field!r}, only {some_names(row)}")
    messages = [] if spoken is None else _messages(spoken, folder, place, images, audio)
    names = (text_field,) if text_field is not None else TEXT_FIELDS
    text = next((row[name] for name in names if row.get(name) is not None), None)
    if text is not None and not isinstance(text, str):
        raise DataError(f"{place}: its text is {type(text).__name__}, not text")
    if not images and not audio and not messages:
        raise DataError(
            f"{place}: it names no image and no audio file, only {some_names(row)}. Such rows have a field "
            f"{', '.join(map(repr, (IMAGE_FIELDS[0], AUDIO_FIELDS[0])))} or {FILE_FIELDS[0]!r}; texts are taken from "
            ".jsonl and .parquet files"
        )
    return MediaRow(place=place, images=tuple(images), audio=tuple(audio), text=text, messages=tuple(messages))


def _messages(
    value: Any, folder: Path, place: str, images: list[Path], audio: list[Path]
) -> list[tuple[str, tuple[Part, ...]]]:
    """The messages of a row; files that parts name are added to the row's, and images no part stands for come first."""
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value) or not value:
        raise DataError(f"{place}: a conversation is a list of messages with role and content")
    found: list[tuple[str, tuple[Part, ...]]] = []
    for message in value:
        role = speaker_role(message, place)
        content = message.get("content", message.get("value"))
        pieces = _pieces(content) if isinstance(content, str) else content
        if not isinstance(pieces, list) or not all(isinstance(piece, Mapping) for piece in pieces):
            raise DataError(f"{place}: the content of a message is a text or a list of parts {{type, …}}")
        parts = []
        for piece in pieces:
            kind = piece.get("type")
            if kind == "text" and isinstance(piece.get("text"), str):
                parts.append({"type": "text", "text": piece["text"]})
            elif kind in ("image", "audio"):
                named = next((piece[name] for name in (kind, "path", "url") if isinstance(piece.get(name), str)), None)
                if named is not None:
                    (images if kind == "image" else audio).append(_file(named, folder, place))
                parts.append({"type": kind})
            else:
                raise DataError(f"{place}: a part of a message is of type text, image or audio, not {str(kind)[:50]!r}")
        found.append((role, tuple(parts)))
    for kind, files in (("image", images), ("audio", audio)):
        standing = sum(part["type"] == kind for _, parts in found for part in parts)
        if standing == 0 and files:
            found[0] = (found[0][0], (*({"type": kind} for _ in files), *found[0][1]))
        elif standing != len(files):
            raise DataError(
                f"{place}: {standing} parts of its messages are of type {kind}, and {len(files)} files are named"
            )
    return found


def _pieces(text: str) -> list[Part]:
    """A text as parts, with those that stand for images."""
    pieces: list[Part] = []
    for number, piece in enumerate(text.split(_PLACEHOLDER)):
        if number:
            pieces.append({"type": "image"})
        if piece.strip():
            pieces.append({"type": "text", "text": piece.strip("\n") if number else piece})
    return pieces


def _values(row: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    value = next((row[name] for name in names if row.get(name)), None)
    if isinstance(value, Mapping):
        value = value.get("path")
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _file(value: Any, folder: Path, place: str) -> Path:
    if not isinstance(value, str) or "://" in value:
        said = value[:80] if isinstance(value, str) else type(value).__name__
        raise DataError(f"{place}: files are named by their paths, and this is {said!r}")
    file = folder / value
    if not file.is_file():
        raise DataError(f"{place}: there is no file {value[:200]!r} (paths are relative to {folder})")
    if file.suffix.lower() not in (*IMAGES, *AUDIO):
        raise DataError(
            f"{place}: {value[:200]!r} ends neither as images do ({', '.join(IMAGES)}) nor as audio does "
            f"({', '.join(AUDIO)})"
        )
    return file


def _media_fields(row: Mapping[str, Any]) -> bool:
    if any(row.get(name) for name in (*IMAGE_FIELDS, *AUDIO_FIELDS)):  # rows of text may have an empty one
        return True
    files = [row[name] for name in FILE_FIELDS if isinstance(row.get(name), str)]
    if any(Path(file).suffix.lower() in (*IMAGES, *AUDIO) for file in files):
        return True
    spoken: list[Any] = next((row[name] for name in CONVERSATIONS if isinstance(row.get(name), list)), [])
    contents = [message.get("content") for message in spoken if isinstance(message, Mapping)]
    return any(isinstance(content, list) for content in contents)
