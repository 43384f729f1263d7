"""Writing a GGUF file tensor by tensor, through the ``gguf`` package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from goldstick.checkpoint.finished_file import FinishedFile
from goldstick.errors import FormatError, UsageError


class GgufWriter(FinishedFile):
    """Writes one GGUF file whose tensors are known by shape beforehand and arrive in any order, also in pieces.

    The header comes first, so nothing but the piece at hand is ever in memory. The file is synced to disk when it is
    closed.

    Args:
        file: Where to write.
        architecture: Name of the architecture in ggml.
        metadata: Key → value; whole numbers become u32 or what their numpy type says, others f32, and lists arrays.
        specs: Name → (ggml type, shape of the tensor's bytes), in the order in which tensors lie in the file.

    Raises:
        UsageError: The package ``gguf`` is not installed.
    """

    def __init__(
        self,
        file: Path,
        architecture: str,
        metadata: Mapping[str, Any],
        specs: Mapping[str, tuple[str, torch.Size]],
    ) -> None:
        package = gguf_package("GGUF files are written")
        self.file = file
        self._specs = dict(specs)
        self._written: dict[str, dict[int, int]] = {name: {} for name in specs}
        self._writer = package.GGUFWriter(file, architecture)
        for key, value in metadata.items():
            _add(self._writer, key, value)
        for name, (kind, shape) in specs.items():
            number = package.GGMLQuantizationType[kind]
            self._writer.add_tensor_info(name, tuple(shape), _byte(), shape.numel(), raw_dtype=number)
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_ti_data_to_file()
        (self._stream,) = self._writer.fout
        self._starts, self._end = {}, self._aligned(self._stream.tell())
        for name, (_, shape) in specs.items():
            self._starts[name] = self._end
            self._end += self._aligned(shape.numel())

    @property
    def nbytes(self) -> int:
        """Bytes that the finished file has."""
        return self._end

    def write(self, name: str, tensor: Tensor, at: int = 0) -> None:
        """A tensor, any dtype, or a piece of it that begins ``at`` a byte.

        Raises:
            FormatError: No such tensor or piece was promised, or it came before.
        """
        data = tensor.contiguous().view(torch.uint8)
        size = self._specs[name][1].numel() if name in self._specs else 0
        if data.numel() + at > size or at in self._written[name]:
            raise FormatError(
                f"{self.file}: {name} {list(tensor.shape)} came, of which {size} bytes were promised and "
                f"{sum(self._written.get(name, {}).values())} are written."
            )
        self._written[name][at] = data.numel()
        self._stream.seek(self._starts[name] + at)
        self._stream.write(data.numpy().tobytes())

    def close(self) -> None:
        """Sync the file to disk and close it; see :class:`FinishedFile`."""
        missing = [
            name for name, (_, shape) in self._specs.items() if sum(self._written[name].values()) < shape.numel()
        ]
        if missing:
            self.abandon()
            raise FormatError(f"{self.file} was closed before {len(missing)} tensors came: {missing[:3]}.")
        self._stream.truncate(self._end)  # the last tensor is filled up to the alignment, too
        self._writer.flush()
        os.fsync(self._stream.fileno())
        self.abandon()

    def abandon(self) -> None:
        """Close the file, whatever is missing."""
        self._writer.close()

    def _aligned(self, size: int) -> int:
        alignment: int = self._writer.data_alignment
        return -(-size // alignment) * alignment


def require_package() -> None:
    """See that the package ``gguf`` is there, before any work is done.

    Raises:
        UsageError: It is not installed.
    """
    gguf_package("GGUF files are written")


def gguf_package(what: str) -> Any:
    """The package ``gguf``.

    Args:
        what: What it is needed for, as the beginning of a sentence.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import gguf
    except ImportError as error:
        raise UsageError(f"{what} through the package 'gguf': pip install 'goldstick[gguf]'.") from error
    return gguf


def _byte() -> Any:
    return np.dtype(np.uint8)


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, np.uint16):
        writer.add_uint16(key, int(value))
        return
    if isinstance(value, np.int32):
        writer.add_int32(key, int(value))
        return
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
