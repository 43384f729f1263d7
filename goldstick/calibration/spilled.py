"""Tensors that wait on disk, in a file without a name, which is gone when its process is."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import overload

import torch
from torch import Tensor

from goldstick.errors import OutputError


class Spilled(Sequence[Tensor]):
    """Tensors in a temporary file, read anew whenever they are asked for, onto the device that each came from.

    Args:
        tensors: What to write, one after the other.

    Raises:
        OutputError: There is no room for temporary files; TMPDIR names another place.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        with _written():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this object
        weakref.finalize(self, self._file.close)
        self._places: list[tuple[int, torch.Size, torch.dtype, torch.device]] = []
        for tensor in tensors:
            with _written():
                self._write(tensor)
        with _written():
            self._file.flush()

    def append(self, tensor: Tensor) -> int:
        """Write another one; returns its place.

        Raises:
            OutputError: There is no room for it.
        """
        with _written():
            self._file.seek(0, 2)
            self._write(tensor)
            self._file.flush()
        return len(self) - 1

    def _write(self, tensor: Tensor) -> None:
        self._places.append((self._file.tell(), tensor.shape, tensor.dtype, tensor.device))
        self._file.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...

    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        start, shape, dtype, device = self._places[index]
        self._file.seek(start)
        data = bytearray(self._file.read(shape.numel() * dtype.itemsize))
        return torch.frombuffer(data, dtype=dtype).reshape(shape).to(device)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[place] for place in range(len(self)))


@contextmanager
def _written() -> Iterator[None]:
    """Say where it was that something could not be written, and what to do."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"A temporary file in {tempfile.gettempdir()} cannot be written: {error.strerror or error}. Free some "
            "space there, or name a folder of another disk by TMPDIR."
        ) from error
