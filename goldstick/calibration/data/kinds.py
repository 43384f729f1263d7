"""What kind of calibration data lies at a path: text, images, recordings, rows that name such files, or tensors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from goldstick.calibration.data.media_rows import MediaRow, names_media, read_media_rows
from goldstick.calibration.data.sources import KNOWN
from goldstick.calibration.data.suffixes import AUDIO, IMAGES
from goldstick.core.counts import counted
from goldstick.errors import DataError

_TENSORS = (".safetensors", ".npz")
_MANIFESTS = (".csv", ".tsv")

#: What is taken, for errors.
TAKEN = (
    "a text (.txt), rows of text, of conversations, or of paths to images or audio (.jsonl), rows with audio or image "
    "paths (.csv, .tsv), a folder of images or of audio files, or tensors (.safetensors, .npz)"
)


class Kind(Enum):
    """A kind of calibration data."""

    TEXT = "text"
    MEDIA = "media"
    TENSORS = "tensors"


@dataclass(frozen=True, kw_only=True)
class Found:
    """What lies at a path.

    Attributes:
        kind: Its kind.
        rows: Each image, recording or row of them, where it is ``MEDIA``.
        other_files: Files of a folder that are of another kind, and left out.
    """

    kind: Kind
    rows: tuple[MediaRow, ...] = ()
    other_files: int = 0


def find_kind(dataset: str, text_field: str | None = None) -> Found:
    """The kind of what lies at a path, by its suffix, its first rows, or the files of a folder.

    What is no path, such as a known name or one of the hub, is text.

    Args:
        dataset: The path or name.
        text_field: The field of rows that holds what belongs to an image or recording, such as its transcript.

    Raises:
        DataError: It is a folder without images or audio files, or with both, or a file that is one of them.
    """
    path = Path(dataset)
    if dataset in KNOWN and not path.is_file():
        return Found(kind=Kind.TEXT)
    if path.is_dir():
        return _folder(path)
    suffix = path.suffix.lower()
    if suffix in (*_TENSORS, *_MANIFESTS, *IMAGES, *AUDIO) and not path.is_file():
        raise DataError(f"there is no calibration file {dataset!r}")
    if suffix in _TENSORS:
        return Found(kind=Kind.TENSORS)
    if suffix in (*IMAGES, *AUDIO):
        raise DataError(f"{dataset}: one {suffix} file is no calibration data; give the folder with such files")
    if suffix in _MANIFESTS or (path.is_file() and names_media(path)):
        return Found(kind=Kind.MEDIA, rows=tuple(read_media_rows(path, text_field)))
    return Found(kind=Kind.TEXT)


def _folder(path: Path) -> Found:
    """The images or recordings of a folder and the folders in it, by name; hidden files do not count."""
    try:
        files = sorted(
            file
            for file in path.rglob("*")
            if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
    except OSError as error:
        raise DataError(f"{path}: the folder cannot be read ({error})") from error
    images = [file for file in files if file.suffix.lower() in IMAGES]
    recordings = [file for file in files if file.suffix.lower() in AUDIO]
    if images and recordings:
        raise DataError(
            f"{path}: a folder of {counted(len(images), 'image')} and {counted(len(recordings), 'audio file')}; give a "
            "folder of one kind, or .jsonl rows that name the files that belong together"
        )
    if not images and not recordings:
        suffixes = Counter(file.suffix.lower() or "no ending" for file in files)
        held = ", ".join(f"{count} of {suffix[:20]}" for suffix, count in suffixes.most_common(5)) or "no file"
        raise DataError(f"{path}: a folder with no image and no audio file, but {held}. Calibration data are {TAKEN}")
    rows = tuple(
        [MediaRow(place=str(file), images=(file,)) for file in images]
        or [MediaRow(place=str(file), audio=(file,)) for file in recordings]
    )
    return Found(kind=Kind.MEDIA, rows=rows, other_files=len(files) - len(rows))
