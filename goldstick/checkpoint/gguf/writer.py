"""Writing a GGUF file tensor by tensor, through the ``gguf`` package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.finished_file import FinishedFile
from goldstick.errors import FormatError, UsageError


class GgufWriter(FinishedFile):
    """Writes one GGUF file whose tensors are known by shape beforehand and arrive in order.

    The header comes first, so nothing but the tensor at hand is ever in memory. The file is synced to disk when it is
    closed.

    Args:
        file: Where to write.
        architecture: Name of the architecture in ggml.
        metadata: Key → value; whole numbers become u32, others f32, and lists arrays.
        specs: Name → (ggml type, shape of the tensor's bytes), in the order in which tensors will be written.

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
        package = _package()
        self.file = file
        self._waiting = dict(specs)
        self._writer = package.GGUFWriter(file, architecture)
        for key, value in metadata.items():
            _add(self._writer, key, value)
        for name, (kind, shape) in specs.items():
            number = package.GGMLQuantizationType[kind]
            self._writer.add_tensor_info(name, tuple(shape), _byte(), shape.numel(), raw_dtype=number)
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_ti_data_to_file()

    def write(self, name: str, tensor: Tensor) -> None:
        """The next tensor, any dtype, whose bytes have the shape that was promised.

        Raises:
            FormatError: It is another one.
        """
        data = tensor.contiguous().view(torch.uint8)
        due = next(iter(self._waiting), None)
        if name != due or data.shape != self._waiting[name][1]:
            raise FormatError(f"{self.file}: {name} {list(tensor.shape)} came where {due or 'nothing'} was due.")
        del self._waiting[name]
        self._writer.write_tensor_data(data.numpy())

    def close(self) -> None:
        """Sync the file to disk and close it; see :class:`FinishedFile`."""
        if self._waiting:
            self.abandon()
            raise FormatError(
                f"{self.file} was closed before {len(self._waiting)} tensors came: {list(self._waiting)[:3]}."
            )
        self._writer.flush()
        for stream in self._writer.fout or ():
            os.fsync(stream.fileno())
        self.abandon()

    def abandon(self) -> None:
        """Close the file, whatever is missing."""
        self._writer.close()


def require_package() -> None:
    """See that the package ``gguf`` is there, before any work is done.

    Raises:
        UsageError: It is not installed.
    """
    _package()


def _package() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise UsageError("GGUF files are written through the package 'gguf': pip install 'goldstick[gguf]'.") from error
    return gguf


def _byte() -> Any:
    import numpy as np

    return np.dtype(np.uint8)


def _add(writer: Any, key: str, value: Any) -> None:
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
