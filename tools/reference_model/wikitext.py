"""WikiText-2 as plain text: found in the shared data folder, with its word-separated form undone."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

_UNDONE = (
    (re.compile(r" @([-,.])@ "), r"\1"),
    (re.compile(r" ([,.;:!?)\]%'’])"), r"\1"),
    (re.compile(r"([(\[$£]) "), r"\1"),
    (re.compile(r' " ([^"\n]*?) " ?'), r' "\1" '),
    (re.compile(r'" ([,.;:!?)])'), r'"\1'),
    (re.compile(r" n't"), "n't"),
    (re.compile(r"= (?:= )+(.*?) =(?: =)*"), r"== \1 =="),
    (re.compile(r"^ +| +$", re.MULTILINE), ""),
    (re.compile(r"\n{2,}"), "\n"),
)


def shared_data() -> Path:
    """The folder with real data: `data` in `$GOLDSTICK_SHARED`, or in `shared` beside the checkout."""
    beside = Path(__file__).resolve().parents[3] / "shared"
    folder = Path(os.environ.get("GOLDSTICK_SHARED", beside)) / "data"
    if not (folder / "wikitext2").is_dir():
        remedy = "set GOLDSTICK_SHARED to the folder that holds data/wikitext2"
        raise FileNotFoundError(f"no WikiText-2 in {folder / 'wikitext2'}: {remedy}")
    return folder


def read_raw(split: str) -> str:
    """The text of a split, `train`, `valid` or `test`, as its file has it."""
    kind = "tokens" if split == "train" else "raw"
    with gzip.open(shared_data() / "wikitext2" / f"wiki.{split}.{kind}.gz", "rt", encoding="utf-8") as file:
        return file.read()


def plain(text: str) -> str:
    """Undo the word-separated form: hyphens, commas and points in words, and spaces around punctuation."""
    for pattern, replacement in _UNDONE:
        text = pattern.sub(replacement, text)
    return text.strip() + "\n"


def articles(text: str) -> list[str]:
    """Cut plain text before every article's title line (`= Title =`)."""
    return [part for part in re.split(r"(?m)^(?== [^=])", text) if part.strip()]
