"""Hidden states between two blocks, in a file, read one batch at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from goldstick.checkpoint.safetensors_file import SafetensorsWriter, read_header
from goldstick.checkpoint.staging import ANEW
from goldstick.core.whole_file import sync_directory
from goldstick.errors import OutputError

Specs = Sequence[tuple[torch.Size, torch.dtype]]


def bytes_of(specs: Specs) -> int:
    """How large hidden states are together."""
    return sum(shape.numel() * dtype.itemsize for shape, dtype in specs)


def name_of(number: int) -> str:
    """The file of the hidden states that go into a block."""
    return f"hidden-{number:05d}.safetensors"


class HiddenStates(Sequence[Tensor]):
    """The hidden states of every batch before a block.

    Args:
        folder: The run's working directory.
        number: The block they go into.
        sha256: What the file must be.
        written: Whether this process has written it just now; it is not read through then.

    Raises:
        OutputError: The file is not that of the unfinished run.
    """

    def __init__(self, folder: Path, number: int, sha256: str, *, written: bool = False) -> None:
        self.number, self.sha256 = number, sha256
        path = _path(folder, number)
        if not path.is_file():
            raise OutputError(f"{path} of the unfinished run is missing. {ANEW}")
        if not written and _sha256(path) != sha256:
            raise OutputError(f"{path} is not what the unfinished run wrote: its sha256 differs. {ANEW}")
        self._tensors = list(read_header(path).values())

    @property
    def specs(self) -> Specs:
        """Shape and dtype of each."""
        return [(info.shape, info.dtype) for info in self._tensors]

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]  # slices are of no use here
        return self._tensors[index].read()

    @staticmethod
    def remove(folder: Path, number: int) -> None:
        """Remove the file of the states before a block."""
        _path(folder, number).unlink(missing_ok=True)


def write_hidden_states(folder: Path, number: int, states: Iterable[Tensor], specs: Specs) -> HiddenStates:
    """Write hidden states as they come, under a name that no other block's have; synced to disk.

    Args:
        folder: The run's working directory.
        number: The block they go into.
        states: The states, batch by batch.
        specs: Their shapes and dtypes.
    """
    path = _path(folder, number)
    path.unlink(missing_ok=True)  # of a run that was cut short while it wrote it
    names = [f"{index:06d}" for index in range(len(specs))]
    with SafetensorsWriter(path, dict(zip(names, specs, strict=True))) as writer:
        for name, state in zip(names, states, strict=True):
            writer.write(name, state.cpu())
    sync_directory(folder)
    return HiddenStates(folder, number, writer.sha256.hexdigest(), written=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _path(folder: Path, number: int) -> Path:
    return folder / name_of(number)
