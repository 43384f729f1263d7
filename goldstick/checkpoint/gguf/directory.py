"""A GGUF file of another tool, given the checkpoint directory it came without."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from goldstick.checkpoint.gguf.file import GgufFile
from goldstick.checkpoint.gguf.metadata import config_of_file
from goldstick.checkpoint.gguf.shards import gguf_file_in, read_model, shard_name, shards_of
from goldstick.checkpoint.gguf.tokenizer_files import TOKENIZER_FILES, tokenizer_files
from goldstick.checkpoint.sidecars import sidecars_of
from goldstick.checkpoint.source import INDEX_NAME, SINGLE_NAME, read_json, refuse_links_out
from goldstick.core.temporary_folder import temporary_folder
from goldstick.errors import FormatError, SourceError
from goldstick.formats.gguf import GGUF, GGUF_NAME


@contextmanager
def checkpoint_directory(path: Path) -> Iterator[Path]:
    """``path``, or where it is a GGUF file or holds one and nothing that says so, a directory made for it.

    That directory lasts as long as the context. It holds a link to the file, a config.json and tokenizer files from the
    file's metadata or, of a directory, those that lie there instead, and licence files.

    Raises:
        FormatError: The file is damaged, or holds a model that goldstick does not read.
        SourceError: There are several GGUF files, and they are not those of one model; or one is a link out of its
            directory, and was not named itself.
    """
    file = _lone_file(path)
    if file is None:
        yield path
        return
    shards = shards_of(file)
    for shard in shards if path.is_dir() else ():  # a link that is named itself is meant
        refuse_links_out(shard)
    header = read_model(file)
    linked = [shard_name(Path(GGUF_NAME).stem, number, len(shards)) for number in range(len(shards))]
    name = Path(os.path.abspath(path if path.is_dir() else path.with_suffix(""))).name or "model"
    sidecars = sidecars_of(path) if path.is_dir() else {}
    texts = {} if _has_tokenizer(sidecars.values()) else _tokenizer_of(header)
    config = _config(path, header) | {"quantization_config": GGUF.config([], [], {})}
    texts["config.json"] = json.dumps(config, indent=2)
    holds = [f"{name}/{file}" for file in (*linked, *texts, *sidecars)]
    with temporary_folder(GGUF.name, holds) as folder:
        made = folder / name
        made.mkdir()
        for link, shard in zip(linked, shards, strict=True):
            (made / link).symlink_to(shard.resolve())
        for carried, sidecar in sidecars.items():
            (made / carried).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(sidecar, made / carried)
        for text, content in texts.items():
            (made / text).write_text(content, encoding="utf-8")
        yield made


def missing_tokenizer(directory: Path) -> str | None:
    """Why there are no tokenizer files beside the GGUF file of a directory and none that could be made of it."""
    file = gguf_file_in(directory)
    if file is None or _has_tokenizer(directory.iterdir()):
        return None
    try:
        tokenizer_files(read_model(file))
    except FormatError as error:
        return str(error)
    return None


def made_by_another_tool(directory: Path) -> bool:
    """Whether a path is a GGUF file, or a directory that holds one without saying so in its config."""
    return _lone_file(directory) is not None


def _has_tokenizer(files: Iterable[Path]) -> bool:
    return any(file.name in TOKENIZER_FILES for file in files)


def _tokenizer_of(header: GgufFile) -> dict[str, str]:
    try:
        return tokenizer_files(header)
    except FormatError:  # said by missing_tokenizer to all that need one
        return {}


def _lone_file(path: Path) -> Path | None:
    if path.is_file() and path.suffix == ".gguf":
        return path
    if not path.is_dir() or (path / SINGLE_NAME).exists() or (path / INDEX_NAME).exists():
        return None
    files = sorted(file for file in path.iterdir() if file.suffix == ".gguf" and file.is_file())
    if not files:
        return None
    config = read_json(path / "config.json", "no checkpoint") if (path / "config.json").is_file() else {}
    if config.get("quantization_config") is not None:
        return None
    if tuple(files) == shards_of(files[0]):
        return files[0]
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:3])
        raise SourceError(f"{path} holds several GGUF files ({names}); name the one that is meant.")
    return files[0]


def _config(path: Path, header: GgufFile) -> dict[str, Any]:
    if path.is_dir() and (path / "config.json").is_file():
        return read_json(path / "config.json", "no checkpoint")
    return config_of_file(header)
