"""Shards: a sequence of tensors, known by shape beforehand, written into safetensors files as they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from goldstick.checkpoint.entries import Entry, Specs, specs_nbytes, write_small
from goldstick.checkpoint.safetensors_file import SafetensorsWriter
from goldstick.checkpoint.source import INDEX_NAME, SINGLE_NAME
from goldstick.checkpoint.staging import ANEW
from goldstick.core.json_files import dump_json
from goldstick.core.progress import Progress
from goldstick.core.whole_file import sync_directory
from goldstick.errors import OutputError

#: Bytes that a file may have where nobody says.
MAX_SHARD_SIZE = 5_000_000_000


class ShardedWriter:
    """Writes tensors in a given order, one in memory at a time.

    What was written so far is ``state``: the number of tensors, and for each file its length and the sha256 of its
    bytes. A writer made with a state goes on after it, once the bytes are seen to be those.

    Args:
        directory: Where to write.
        groups: The tensors that stay in one file together, in their order.
        max_shard_size: Bytes a file may have, 5 GB where ``None``; a larger group has a file of its own.
        state: What an earlier writer left.

    Raises:
        OutputError: The files are not what the state says.
    """

    def __init__(
        self,
        directory: Path,
        groups: Sequence[Specs],
        max_shard_size: int | None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._directory = directory
        self._shards = shards_of(groups, max_shard_size or MAX_SHARD_SIZE)
        self._hashes: dict[str, str] = {}
        self._written = 0
        self._index = 0
        self._file: SafetensorsWriter | None = None
        if state:
            self._go_on(state)
        else:
            self._open()

    def write(self, name: str, tensor: Tensor) -> None:
        """The next tensor."""
        if self._file is None or not self._file.waiting:
            self._close_file()
            self._index += 1
            self._open()
        assert self._file is not None
        self._file.write(name, tensor)
        self._written += 1

    def state(self) -> dict[str, Any]:
        """What was written so far, synced to disk."""
        assert self._file is not None
        self._file.sync()
        sync_directory(self._directory)
        files = {name: [(self._directory / name).stat().st_size, digest] for name, digest in self._hashes.items()}
        files[self._name(self._index)] = [self._file.position, self._file.sha256.hexdigest()]
        return {"tensors": self._written, "files": files}

    def close(self) -> dict[str, str]:
        """Finish the last file and write the index; file name → sha256 of every file."""
        self._close_file()
        hashes = dict(self._hashes)
        if len(self._shards) > 1:
            size = sum(specs_nbytes(shard) for shard in self._shards)
            places = {name: self._name(index) for index, shard in enumerate(self._shards) for name in shard}
            text = dump_json({"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}).encode()
            (self._directory / INDEX_NAME).unlink(missing_ok=True)  # of a run that was cut short after this point
            hashes[INDEX_NAME] = write_small(self._directory / INDEX_NAME, text)
        return hashes

    def abandon(self) -> None:
        """Close the file at hand, whatever is missing."""
        if self._file is not None:
            self._file.abandon()

    def _name(self, index: int) -> str:
        many = len(self._shards)
        return SINGLE_NAME if many == 1 else f"model-{index + 1:05d}-of-{many:05d}.safetensors"

    def _open(self) -> None:
        self._file = SafetensorsWriter(self._directory / self._name(self._index), self._shards[self._index])

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._hashes[self._name(self._index)] = self._file.sha256.hexdigest()
            self._file = None

    def _go_on(self, state: Mapping[str, Any]) -> None:
        self._written = state["tensors"]
        files: dict[str, list[Any]] = state["files"]
        self._index = len(files) - 1
        for index in range(self._index + 1, len(self._shards)):
            (self._directory / self._name(index)).unlink(missing_ok=True)
        before = sum(len(shard) for shard in self._shards[: self._index])
        for index in range(self._index + 1):
            name = self._name(index)
            length, digest = files[name]
            count = self._written - before if index == self._index else len(self._shards[index])
            path = self._directory / name
            if not path.is_file():
                raise OutputError(f"{path} of the unfinished run is missing. {ANEW}")
            writer = SafetensorsWriter.going_on(path, self._shards[index], count, length)
            if writer.sha256.hexdigest() != digest:
                writer.abandon()
                raise OutputError(f"{path} is not what the unfinished run wrote: its sha256 differs. {ANEW}")
            if index < self._index:
                writer.close()
                self._hashes[name] = digest
            else:
                self._file = writer


def write_entries(
    directory: Path, entries: Iterable[Entry], max_shard_size: int | None, progress: Progress
) -> dict[str, str]:
    """Write entries as safetensors shards, one entry in memory at a time.

    Returns:
        File name → sha256 of every file written, the index included.
    """
    every = list(entries)
    writer = ShardedWriter(directory, [entry.outputs for entry in every], max_shard_size)
    try:
        for done, entry in enumerate(every):
            progress("writing", done, len(every))
            tensors = entry.produce()
            for name in entry.outputs:
                writer.write(name, tensors[name])
        progress("writing", len(every), len(every))
        return writer.close()
    finally:
        writer.abandon()


def shards_of(groups: Sequence[Specs], limit: int) -> list[Specs]:
    """What each file holds, where none may have more bytes of tensors than ``limit`` but for one group alone."""
    shards: list[Specs] = [{}]
    size = 0
    for group in groups:
        if shards[-1] and size + specs_nbytes(group) > limit:
            shards.append({})
            size = 0
        shards[-1].update(group)
        size += specs_nbytes(group)
    return shards
