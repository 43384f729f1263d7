"""Safetensors files read tensor by tensor and written front to back, without mapping or holding a whole file."""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.finished_file import FinishedFile
from goldstick.checkpoint.strict_json import parse_object, size_limit
from goldstick.errors import FormatError, OutputError

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_HEADER_LIMIT = 100_000_000
_TENSOR_LIMIT = 1_000_000
#: Bytes read at a time where a file is hashed.
_PIECE = 1 << 20
_NDIM_LIMIT = 8
_NAME_LIMIT = 1024


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """Where one tensor lies in a safetensors file.

    Attributes:
        name: Its name.
        file: The file.
        dtype: Its dtype.
        shape: Its shape.
        start: First byte, counted from the start of the file.
        nbytes: Its length in bytes.
    """

    name: str
    file: Path
    dtype: torch.dtype
    shape: torch.Size
    start: int
    nbytes: int

    @property
    def stored_nbytes(self) -> int:
        """Bytes that it takes in its file."""
        return self.nbytes

    @property
    def stored_as(self) -> str:
        """What its file holds in its place, where reading turns that into numbers; empty for what is read as it is."""
        return ""

    def holds(self, tensor: Tensor) -> bool:
        """Whether it is a tensor, bit for bit."""
        found = self.read()
        return (found.shape, found.dtype) == (tensor.shape, tensor.dtype) and _equal_bytes(found, tensor)

    def read(self, digest: Any = None) -> Tensor:
        """The tensor, read by its position; ``digest`` is fed the bytes.

        Raises:
            FormatError: The file ends inside the tensor, or cannot be read.
        """
        buffer = bytearray(self.nbytes)
        view = memoryview(buffer)
        try:
            with self.file.open("rb", buffering=0) as file:
                file.seek(self.start)
                done = 0
                while done < self.nbytes:
                    count = file.readinto(view[done:])
                    if not count:
                        raise FormatError(f"{self.file} ends inside the tensor {self.name!r}: it was cut short.")
                    done += count
        except OSError as error:
            raise FormatError(f"{self.file} cannot be read at {self.name!r}: {error.strerror or error}.") from error
        if digest is not None:
            digest.update(buffer)
        if not buffer:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(buffer, dtype=self.dtype).reshape(self.shape)


def _equal_bytes(one: Tensor, other: Tensor) -> bool:
    return torch.equal(*(tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)))


def read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file, in the order of their bytes.

    Stricter than the library: also refuses odd names, unknown dtypes, more than 8 dimensions, a million tensors, and a
    header out of proportion to its file, which could take more memory than the file does.

    Raises:
        FormatError: The file is no safetensors file, is damaged, or claims what cannot be.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
            if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
                raise FormatError(
                    f"{file} is not a safetensors file, or was cut short: its header does not fit the file."
                )
            if length > size_limit(size):
                raise FormatError(f"{file} is refused: its header has {length:,} of the file's {size:,} bytes.")
            text = stream.read(length)
    except OSError as error:
        raise FormatError(f"{file} cannot be read: {error.strerror or error}.") from error
    if text[:1] != b"{":
        raise FormatError(f"The header of {file} is not a table of tensors.")
    header = parse_object(text, f"The header of {file}")
    if len(header) > _TENSOR_LIMIT:
        raise FormatError(f"The header of {file} names {len(header):,} tensors, more than {_TENSOR_LIMIT:,}.")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError(f"The header of {file} holds a '__metadata__' that is no table of texts.")
    infos = [_entry(file, name, value, 8 + length) for name, value in header.items()]
    infos.sort(key=lambda info: (info.start, info.nbytes))
    position = 8 + length
    for info in infos:
        if info.start != position:
            raise FormatError(f"{file}: the bytes of {info.name!r} overlap another tensor or leave a gap.")
        position += info.nbytes
    if position != size:
        raise FormatError(f"{file} holds {size} bytes and its header promises {position}: it was cut short or damaged.")
    return {info.name: info for info in infos}


def file_head(file: Path) -> bytes:
    """The bytes of a safetensors file before its first tensor."""
    with file.open("rb") as stream:
        prefix = stream.read(8)
        return prefix + stream.read(struct.unpack("<Q", prefix)[0])


def _entry(file: Path, name: str, value: Any, base: int) -> TensorInfo:
    if not (0 < len(name) <= _NAME_LIMIT and name.isprintable()):
        raise FormatError(f"{file}: the tensor name {name[:100]!r} is refused: it is empty, too long or unprintable.")
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{file}: the header's entry of {name!r} has not dtype, shape and data_offsets, no more.")
    dtype = DTYPES.get(value["dtype"]) if isinstance(value["dtype"], str) else None
    if dtype is None:
        known = ", ".join(DTYPES)
        raise FormatError(f"{file}: {name!r} has the dtype {str(value['dtype'])[:100]!r}; goldstick reads {known}.")
    shape, offsets = value["shape"], value["data_offsets"]
    if not (_sizes(shape) and len(shape) <= _NDIM_LIMIT and _sizes(offsets) and len(offsets) == 2):
        raise FormatError(f"{file}: the header's entry of {name!r} has a shape or offsets that cannot be.")
    # A size of 0 must not hide a product that overflows.
    nbytes = math.prod(shape) * dtype.itemsize
    begin, end = offsets
    if end - begin != nbytes or math.prod(size or 1 for size in shape) >= 2**60:
        raise FormatError(f"{file}: the header's entry of {name!r} does not fit its own shape and dtype.")
    return TensorInfo(name=name, file=file, dtype=dtype, shape=torch.Size(shape), start=base + begin, nbytes=nbytes)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 2**63 for number in value)


def header_bytes(specs: Mapping[str, tuple[torch.Size, torch.dtype]]) -> bytes:
    """What a safetensors file of these begins with, its filling included; FormatError for a dtype it cannot have."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (shape, dtype) in specs.items():
        end = position + math.prod(shape) * dtype.itemsize
        if dtype not in _NAMES:
            raise FormatError(f"{name} is {dtype}, which safetensors files do not have: convert it to another dtype.")
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


class SafetensorsWriter(FinishedFile):
    """Writes one safetensors file whose tensors are known by shape beforehand and arrive in order.

    The header comes first, so nothing but the tensor at hand is ever in memory. ``sha256`` is complete after closing;
    the file is synced to disk.

    Args:
        file: Where to write; must not exist.
        specs: Name → (shape, dtype), in the order in which tensors will be written.
    """

    def __init__(self, file: Path, specs: Mapping[str, tuple[torch.Size, torch.dtype]]) -> None:
        self._prepare(file, specs)
        self._stream = file.open("xb", buffering=0)
        try:
            self._write(header_bytes(self._specs))
        except BaseException:
            self._stream.close()
            raise

    def _prepare(self, file: Path, specs: Mapping[str, tuple[torch.Size, torch.dtype]]) -> None:
        self.file = file
        self.sha256 = hashlib.sha256()
        self._specs = dict(specs)
        self._waiting = list(specs)

    @classmethod
    def going_on(
        cls, file: Path, specs: Mapping[str, tuple[torch.Size, torch.dtype]], written: int, length: int
    ) -> SafetensorsWriter:
        """Go on with a file after its first ``written`` tensors, ``length`` bytes; what comes behind them is cut off.

        ``sha256`` is then that of the bytes found, for the caller to compare.
        """
        writer = cls.__new__(cls)
        writer._prepare(file, specs)
        del writer._waiting[:written]
        writer._stream = file.open("r+b", buffering=0)
        writer._stream.truncate(length)
        while part := writer._stream.read(_PIECE):
            writer.sha256.update(part)
        return writer

    @property
    def waiting(self) -> int:
        """How many tensors are still to come."""
        return len(self._waiting)

    @property
    def position(self) -> int:
        """Bytes written so far."""
        return self._stream.tell()

    def sync(self) -> None:
        """Bring what was written so far to disk."""
        os.fsync(self._stream.fileno())

    def abandon(self) -> None:
        """Close the file, whatever is missing."""
        self._stream.close()

    def write(self, name: str, tensor: Tensor) -> None:
        """The next tensor.

        Raises:
            FormatError: It is not the tensor, shape or dtype that was promised.
            OutputError: The disk is full.
        """
        shape, dtype = self._specs[name] if self._waiting and self._waiting[0] == name else (None, None)
        if (tensor.shape, tensor.dtype) != (shape, dtype):
            expected = f"{self._waiting[0]} {self._specs[self._waiting[0]]}" if self._waiting else "no more tensors"
            raise FormatError(f"{self.file}: {name} {tensor.shape} {tensor.dtype} came where {expected} was due.")
        self._waiting.pop(0)
        if tensor.numel():
            self._write(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._stream.write(view) or 0 :]
        except OSError as error:
            raise OutputError(
                f"Writing {self.file} failed after {self._stream.tell():,} bytes: {error.strerror}. Free space on "
                "that disk, or choose another output directory; nothing that existed before was touched."
            ) from error
        self.sha256.update(data)

    def close(self) -> None:
        """Sync the file to disk and close it; see :class:`FinishedFile`."""
        if self._waiting:
            self.abandon()
            raise FormatError(f"{self.file} was closed before {len(self._waiting)} tensors came: {self._waiting[:3]}.")
        os.fsync(self._stream.fileno())
        self._stream.close()
