"""Where calibration data come from: a file, a set known by name, or the hub; and which part of a row counts."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goldstick.calibration.data.chat import Message, read_messages, some_names
from goldstick.calibration.data.parquet import read_parquet
from goldstick.errors import DataError
from goldstick.evaluation.data import Dataset, DataSource
from goldstick.evaluation.hub import HubDataset

#: Sets known by name: the parts that evaluation does not use.
KNOWN: Mapping[str, Dataset] = {
    "wikitext2": Dataset(
        name="wikitext2",
        files=("wikitext2/wiki.train.raw", "wikitext2/wiki.train.tokens"),
        hub=(HubDataset(path="Salesforce/wikitext", configuration="wikitext-2-raw-v1", split="train"),),
    ),
    "tinystories": Dataset(
        name="tinystories",
        files=("tinystories/stories.jsonl",),
        hub=(HubDataset(path="roneneldan/TinyStories", split="train"),),
    ),
    "reference": Dataset(name="reference", files=("text/calibration.txt",)),
}
#: Fields that are looked for, best first.
FIELDS = ("text", "messages", "conversations")
_CONVERSATIONS = FIELDS[1:]
_PART = "part"
_KNOWN_ROWS = ("tinystories",)
_TEXT_SUFFIXES, _ROW_SUFFIXES = (".txt", ".raw", ".tokens"), (".jsonl", ".parquet")


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One text or one conversation.

    Attributes:
        place: File and row, for errors.
        content: The text, or the conversation's messages.
    """

    place: str
    content: str | tuple[Message, ...]

    @property
    def blank(self) -> bool:
        """Whether there is nothing to read in it."""
        if isinstance(self.content, str):
            return not self.content.strip()
        return not any(message["content"].strip() or "tool_calls" in message for message in self.content)


def read_documents(dataset: str, data_dir: Path | None, text_field: str | None = None) -> list[Document]:
    """The documents of a data set: a text file, a file of rows, a known name, or a hub name.

    A ``.txt`` file is one text. Each row of a ``.jsonl`` or ``.parquet`` file is a text in the field ``text``, or a
    conversation in ``messages`` or ``conversations``; where rows have a ``part``, those of ``val`` or ``train`` count.
    Blank rows are among the documents, so that they can be counted.

    Args:
        dataset: Its path or name; files other than parquet may be compressed (``.gz``).
        data_dir: Where sets known by name lie.
        text_field: The field of a row that counts, instead of those above.

    Raises:
        DataError: There is no such file or name, its ending is of no kind that is read, it holds no rows, or a row has
            none of the fields.
    """
    located = _locate(dataset, data_dir)
    if located.parquet is not None:
        columns = (*((text_field,) if text_field else FIELDS), _PART)
        return _documents(dataset, "row", read_parquet(located.parquet, columns), text_field)
    return (_rows if located.of_rows else _text)(located.source, located.dataset, text_field)


def require_documents(dataset: str, data_dir: Path | None) -> None:
    """Raise the DataError of :func:`read_documents` where there is no such data set; no document is read.

    Args:
        dataset: Its path or name.
        data_dir: Where sets known by name lie.
    """
    located = _locate(dataset, data_dir)
    if located.parquet is None:
        located.source.require(located.dataset)


@dataclass(frozen=True, kw_only=True)
class _Located:
    """Where a data set is, and whether it has rows."""

    source: DataSource
    dataset: Dataset
    of_rows: bool
    parquet: Path | None = None


def _locate(dataset: str, data_dir: Path | None) -> _Located:
    path = Path(dataset)
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if dataset in KNOWN and not path.is_file():  # a folder of that name may well lie here: the data themselves
        return _Located(source=DataSource(data_dir), dataset=KNOWN[dataset], of_rows=dataset in _KNOWN_ROWS)
    known_suffix = plain.suffix in (*_TEXT_SUFFIXES, *_ROW_SUFFIXES)
    if known_suffix or path.exists():
        if path.is_dir():
            raise DataError(f"{dataset} is a folder, and text is read here: give a .txt, .jsonl or .parquet file")
        if not path.is_file():
            raise DataError(f"there is no calibration file {dataset!r}")
        if plain.suffix and not known_suffix:
            raise DataError(
                f"{dataset}: calibration files end in {', '.join(_TEXT_SUFFIXES)} or nothing (one text), .jsonl or "
                ".parquet (a text or a conversation in each row), all but .parquet with .gz behind it where "
                "compressed; write the data as one of these, or rename a file that is one"
            )
        return _Located(
            source=DataSource(path.parent),
            dataset=Dataset(name=dataset, files=(glob.escape(path.name),)),
            of_rows=plain.suffix in _ROW_SUFFIXES,
            parquet=path if plain.suffix == ".parquet" else None,
        )
    if "/" not in dataset:
        raise DataError(
            f"no calibration data is called {dataset!r}: give a .txt, .jsonl or .parquet file, a hub name "
            f"(owner/name), or one of {', '.join(KNOWN)}"
        )
    hub = Dataset(name=dataset, files=(), hub=(HubDataset(path=dataset, split="train"),))
    return _Located(source=DataSource(None), dataset=hub, of_rows=True)


def _text(source: DataSource, dataset: Dataset, text_field: str | None) -> list[Document]:
    if text_field is not None:
        raise DataError(f"{dataset.name} is one text: it has no rows, and so no field {text_field!r}")
    return [Document(place=dataset.name, content="".join(source.lines(dataset)))]


def _rows(source: DataSource, dataset: Dataset, text_field: str | None) -> list[Document]:
    path = source.find(dataset)
    place, what = (dataset.name, "row") if path is None else (str(path), "line")
    return _documents(place, what, source.numbered_rows(dataset), text_field)


def _documents(
    place: str, what: str, rows: Iterable[tuple[int, Mapping[str, Any]]], text_field: str | None
) -> list[Document]:
    found = [
        _document(f"{place}, {what} {number}", row, text_field)
        for number, row in rows
        if (row.get(_PART) or "train") in ("train", "val")
    ]
    if not found:
        raise DataError(f"{place}: it holds no rows (where rows have a part, none is of train or val)")
    return found


def _document(place: str, row: Mapping[str, Any], text_field: str | None) -> Document:
    present = [name for name in ((text_field,) if text_field else FIELDS) if name in row]
    if not present:
        looked_for = repr(text_field) if text_field else "'text', 'messages' or 'conversations'"
        raise DataError(f"{place}: no field {looked_for}, only {some_names(row)}; --text-field names another")
    name = next((name for name in present if row[name] is not None), present[0])
    value = row[name]
    if value is None or (isinstance(value, str) and name not in _CONVERSATIONS):
        return Document(place=place, content=value or "")
    if name == "text":
        raise DataError(f"{place}: its field 'text' is {type(value).__name__}, not text")
    return Document(place=place, content=read_messages(value, place))
