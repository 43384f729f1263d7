"""A GGUF model in several files, as llama.cpp splits one: ``name-00001-of-00003.gguf``, the metadata in the first."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from goldstick.checkpoint.gguf.file import GgufFile, StoredTensor, read_gguf
from goldstick.checkpoint.gguf.writer import GgufWriter
from goldstick.errors import FormatError
from goldstick.formats.gguf import GGUF_NAME

#: Bytes that a file of a model may have where nobody says: what hubs take.
MAX_SHARD_SIZE = 50_000_000_000
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"

Specs = Mapping[str, tuple[str, torch.Size]]


def shard_name(stem: str, number: int, count: int) -> str:
    """Name of the file with a number from 0 on; ``stem.gguf`` where it is the only one."""
    return f"{stem}.gguf" if count == 1 else f"{stem}-{number + 1:05d}-of-{count:05d}.gguf"


def shards_of(file: Path) -> tuple[Path, ...]:
    """The files of the model that a file belongs to by its name, in their order; itself where it is whole."""
    match = _SHARD.fullmatch(file.name)
    if match is None:
        return (file,)
    return tuple(file.with_name(shard_name(match[1], number, int(match[3]))) for number in range(int(match[3])))


def gguf_file_in(directory: Path) -> Path | None:
    """The GGUF file of a checkpoint directory, of several the first; ``None`` where there is none."""
    whole = directory / GGUF_NAME
    if whole.is_file():
        return whole
    first = sorted(directory.glob(f"{whole.stem}-00001-of-*.gguf")) if directory.is_dir() else []
    return first[0] if first else None


def read_model(file: Path) -> GgufFile:
    """The headers of a model, of one file or several; no tensor.

    Args:
        file: The file, or any of several.

    Raises:
        FormatError: A file is damaged, missing, or not the one that its name says.
    """
    files = shards_of(file)
    missing = next((each for each in files if not each.is_file()), None)
    if missing is not None:
        raise FormatError(f"{file} is one of {len(files)} files of a model, and {missing.name} is not beside it.")
    first = read_gguf(files[0].resolve())  # links of a cache have other names behind them
    count = first.metadata.get(_COUNT, 1)
    if count != len(files):
        raise FormatError(
            f"{files[0]} is one of {count!r} files of a model, and by its name one of {len(files)}. Give the files the "
            "names that they had, such as model-00001-of-00002.gguf."
        )
    tensors: dict[str, StoredTensor] = dict(first.tensors)
    for number, each in enumerate(files[1:], 1):
        header = read_gguf(each.resolve())
        if (header.metadata.get(_NUMBER), header.metadata.get(_COUNT)) != (number, count):
            raise FormatError(f"{each} is not file {number + 1} of {count}, as its name says. Fetch it again.")
        twice = next((name for name in header.tensors if name in tensors), None)
        if twice is not None:
            raise FormatError(f"The tensor {twice!r} is in two files of {files[0]}.")
        tensors |= header.tensors
    promised = first.metadata.get(_TENSORS, len(tensors))
    if promised != len(tensors):
        raise FormatError(f"{files[0]} promises {promised!r} tensors in {count} files, which hold {len(tensors)}.")
    return dataclasses.replace(first, tensors=tensors)


class ShardedGgufWriter:
    """Writes a model into as many files as a limit makes of it; see :class:`GgufWriter`.

    Args:
        directory: Where to write ``model.gguf``, or ``model-00001-of-0000N.gguf`` and its like.
        architecture: Name of the architecture in ggml.
        metadata: Key → value; of several files the first holds it.
        specs: Name → (ggml type, shape of the tensor's bytes).
        max_shard_size: Bytes of tensors that a file may have, 50 GB where ``None``; a larger tensor has a file of its
            own.
    """

    def __init__(
        self, directory: Path, architecture: str, metadata: Mapping[str, Any], specs: Specs, max_shard_size: int | None
    ) -> None:
        cut = _cut(specs, max_shard_size or MAX_SHARD_SIZE)
        self.files = [directory / shard_name(Path(GGUF_NAME).stem, number, len(cut)) for number in range(len(cut))]
        self._writers: list[GgufWriter] = []
        for number, (file, part) in enumerate(zip(self.files, cut, strict=True)):
            entries = dict(metadata) if number == 0 else {}
            if len(cut) > 1:
                entries |= {_NUMBER: np.uint16(number), _COUNT: np.uint16(len(cut)), _TENSORS: np.int32(len(specs))}
            self._writers.append(GgufWriter(file, architecture, entries, part))
        self._writer_of = {name: writer for writer, part in zip(self._writers, cut, strict=True) for name in part}

    def write(self, name: str, tensor: Tensor, at: int = 0) -> None:
        """A tensor, or a piece of it that begins ``at`` a byte; see :meth:`GgufWriter.write`."""
        self._writer_of.get(name, self._writers[0]).write(name, tensor, at)

    def __enter__(self) -> ShardedGgufWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Sync and close all files, or abandon them."""
        for writer in self._writers:
            writer.abandon() if kind is not None else writer.close()


def _cut(specs: Specs, limit: int) -> Sequence[Specs]:
    """The tensors of each file, in their order."""
    parts: list[dict[str, tuple[str, torch.Size]]] = [{}]
    room = limit
    for name, spec in specs.items():
        size = spec[1].numel()
        if size > room and parts[-1]:
            parts.append({})
            room = limit
        parts[-1][name] = spec
        room -= size
    return parts
