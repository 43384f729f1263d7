"""The files beside the weights that a checkpoint carries on, byte for byte: tokenizers, licences, modules around it."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from goldstick.checkpoint.entries import write_small
from goldstick.checkpoint.source import LONGEST_NAME, refuse_links_out
from goldstick.core.json_files import parse_json
from goldstick.core.notices import LeftOutWarning
from goldstick.errors import DataError, SourceError

SIDECARS = re.compile(
    r"(generation_config\.json|tokenizer.*|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)|merges\.txt|"
    r"spiece\.model|sentencepiece\.bpe\.model|chat_template.*|.*preprocessor_config\.json|processor_config\.json|"
    r"modules\.json|sentence_[a-z-]+_config\.json|config_sentence_transformers\.json|LICENSE.*|NOTICE.*|USE_POLICY.*)"
)
#: sentence-transformers' list of what runs after the model, each with a folder of its own.
MODULES_NAME = "modules.json"
#: What is carried on from such a folder: no code, and nothing that can run code when it is opened.
_OF_MODULES = (".json", ".txt", ".model", ".safetensors")


def sidecars_of(directory: Path) -> dict[str, Path]:
    """The files beside the weights that a checkpoint carries on.

    Of the folders that sentence-transformers' ``modules.json`` names (pooling, dense layers, normalization), their
    files are, too.

    Args:
        directory: The checkpoint.

    Returns:
        Name relative to the directory, with ``/`` → path, sorted.

    Raises:
        SourceError: One is a link to a file elsewhere, or ``modules.json`` cannot be read or leads elsewhere.

    Warns:
        LeftOutWarning: A folder of a module holds a file that is not carried on.
    """
    found = {path.name: path for path in directory.iterdir() if path.is_file() and SIDECARS.fullmatch(path.name)}
    for path in found.values():
        refuse_links_out(path)
    if MODULES_NAME in found:
        for folder in _folders(found[MODULES_NAME]):
            found |= _carried(directory, folder)
    return dict(sorted(found.items()))


def write_sidecars(folder: Path, sidecars: Mapping[str, Path]) -> dict[str, str]:
    """Copy sidecars into a checkpoint that is being written; returns name → sha256."""
    hashes = {}
    for name, path in sidecars.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        hashes[name] = write_small(folder / name, path.read_bytes())
    return hashes


def is_inside(name: str) -> bool:
    """Whether a name is that of a file in a directory, or in a folder of it, whatever else it might lead to."""
    parts = name.split("/")
    return all(part not in ("", ".", "..") and len(os.fsencode(part)) <= LONGEST_NAME for part in parts)


def _folders(path: Path) -> Iterator[str]:
    try:
        modules: Any = parse_json(path.read_text(encoding="utf-8"), str(path))
        named = [(str(one["type"]), str(one["path"])) for one in modules]
    except (OSError, UnicodeDecodeError, DataError, KeyError, TypeError) as error:
        raise SourceError(f"{path} is no list of modules: {error}. Remove or mend it.") from error
    for kind, folder in named:
        if not folder or kind.rpartition(".")[2] == "Transformer":
            continue  # the model itself
        if not is_inside(folder):
            raise SourceError(f"{path} names the folder {folder[:100]!r}, which lies elsewhere; this is refused.")
        yield folder


def _carried(directory: Path, folder: str) -> dict[str, Path]:
    found, left = {}, []
    for place, _, files in os.walk(directory / folder):
        for file in files:
            path = Path(place) / file
            if path.suffix in _OF_MODULES:
                refuse_links_out(path, directory)
                found[path.relative_to(directory).as_posix()] = path
            elif not file.startswith(".") and path.suffix != ".md":
                left.append(path.relative_to(directory).as_posix())
    if left:
        warnings.warn(
            f"{', '.join(sorted(left)[:3])} in {directory}: not carried on, since it could run code. Where "
            "sentence-transformers needs it, save that module as safetensors first.",
            LeftOutWarning,
            stacklevel=2,
        )
    return found
