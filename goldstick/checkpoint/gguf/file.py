"""The header of a GGUF file, read strictly: metadata, and where each tensor lies.

Layout (version 2 and 3, little-endian): ``GGUF``, version u32, number of tensors u64, number of metadata entries u64;
the entries (key, type u32, value); of each tensor name, number of dimensions u32, dimensions u64 from the innermost,
type u32 and offset u64; then, from the next multiple of the alignment on, the data. A string is a length u64 and UTF-8.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from goldstick.errors import FormatError

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_ENTRIES_LIMIT, _TENSORS_LIMIT, _ARRAY_LIMIT = 65_536, 1_000_000, 4_000_000
_STRING_LIMIT = 16_000_000
_PLAIN_NAME = re.compile(r"[\x21-\x7e]{1,64}")

#: Every ggml type by number: name, weights in a block, bytes of a block.
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}
NUMBER_OF_TYPE = {name: number for number, (name, _, _) in GGML_TYPES.items()}


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where one tensor lies in a GGUF file.

    Attributes:
        name: Its name in the file.
        type: Name of its ggml type.
        shape: Its shape, rows first.
        start: First byte, counted from the start of the file.
        nbytes: Its length in bytes.
        file: The file that holds it.
    """

    name: str
    type: str
    shape: torch.Size
    start: int
    nbytes: int
    file: Path


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """The header of a GGUF file.

    Attributes:
        path: The file; of several the first.
        metadata: Key → value; arrays are lists.
        tensors: Every tensor by name, in the order of their bytes.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file; no tensor.

    Raises:
        FormatError: It is no GGUF file, is damaged or cut short, or claims what cannot be.
    """
    with path.open("rb") as stream:
        reader = _Reader(path, stream)
        if reader.take(4) != b"GGUF":
            raise FormatError(f"{path} is no GGUF file: it does not begin with the letters GGUF.")
        version = reader.number("I")
        if version not in (2, 3):
            raise FormatError(
                f"{path} is GGUF of version {version}, and goldstick reads versions 2 and 3, little-endian."
            )
        tensors, entries = reader.number("Q"), reader.number("Q")
        if tensors > _TENSORS_LIMIT or entries > _ENTRIES_LIMIT:
            raise FormatError(f"{path} claims {tensors:,} tensors and {entries:,} metadata entries; it is damaged.")
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = reader.string()
            if key in metadata:
                raise FormatError(f"{path} holds the metadata entry {key!r} twice.")
            metadata[key] = reader.value(reader.number("I"))
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise FormatError(f"{path} declares the alignment {alignment!r}; it is a power of two from 8 to 65536.")
        claims = [reader.tensor() for _ in range(tensors)]
        base = -(-stream.tell() // alignment) * alignment
    found = sorted((_placed(path, claim, base, alignment) for claim in claims), key=lambda tensor: tensor.start)
    _check_places(path, found, base, reader.size, alignment)
    return GgufFile(path=path, metadata=metadata, tensors={tensor.name: tensor for tensor in found})


class _Reader:
    """Takes numbers, strings and arrays from a file and never more than it holds."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path, self._stream = path, stream
        self.size = path.stat().st_size

    def take(self, count: int) -> bytes:
        if count > self.size - self._stream.tell():
            raise FormatError(f"{self._path} was cut short, or its header is damaged: it ends inside the header.")
        return self._stream.read(count)

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def string(self) -> str:
        length = self.number("Q")
        if length > _STRING_LIMIT:
            raise FormatError(f"The header of {self._path} holds a string of {length:,} bytes; it is damaged.")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"The header of {self._path} holds a string that is no UTF-8: {error}.") from error

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _NUMBERS:
            raise FormatError(f"The header of {self._path} holds a value of the unknown type {kind}.")
        value = self.number(_NUMBERS[kind])
        return bool(value) if kind == _BOOL else value

    def _array(self) -> list[Any]:
        kind, count = self.number("I"), self.number("Q")
        if count > _ARRAY_LIMIT:
            raise FormatError(f"The header of {self._path} holds an array of {count:,} values; it is damaged.")
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        if kind not in _NUMBERS:
            raise FormatError(
                f"The header of {self._path} holds an array of the type {kind}, which goldstick does not read."
            )
        code = f"<{count}{_NUMBERS[kind]}"
        values = struct.unpack(code, self.take(struct.calcsize(code)))
        return [bool(value) for value in values] if kind == _BOOL else list(values)

    def tensor(self) -> tuple[str, list[int], int, int]:
        name = self.string()
        ndim = self.number("I")
        if not 1 <= ndim <= 4:
            raise FormatError(f"{self._path}: the tensor {name!r} claims {ndim} dimensions; there are 1 to 4.")
        return name, [self.number("Q") for _ in range(ndim)], self.number("I"), self.number("Q")


def _placed(path: Path, claim: tuple[str, list[int], int, int], base: int, alignment: int) -> StoredTensor:
    name, dimensions, number, offset = claim
    if not _PLAIN_NAME.fullmatch(name):
        raise FormatError(f"{path} holds a tensor of the odd name {name[:80]!r}; it is damaged.")
    if number not in GGML_TYPES:
        raise FormatError(f"{path}: the tensor {name!r} has the unknown type {number}.")
    kind, block, nbytes = GGML_TYPES[number]
    if not all(0 < size < 1 << 40 for size in dimensions) or dimensions[0] % block or offset % alignment:
        raise FormatError(
            f"{path}: shape {dimensions[::-1]} and offset {offset} of {name!r} do not fit the type {kind}."
        )
    count = math.prod(dimensions)
    return StoredTensor(
        name=name,
        type=kind,
        shape=torch.Size(dimensions[::-1]),
        start=base + offset,
        nbytes=count // block * nbytes,
        file=path,
    )


def _check_places(path: Path, found: list[StoredTensor], base: int, size: int, alignment: int) -> None:
    position, names = base, set()
    for tensor in found:
        if tensor.name in names:
            raise FormatError(f"{path} holds the tensor {tensor.name!r} twice.")
        names.add(tensor.name)
        if not 0 <= tensor.start - position < alignment:
            raise FormatError(f"{path}: the bytes of {tensor.name!r} overlap another tensor or leave a gap.")
        position = tensor.start + tensor.nbytes
    if position > size or size - position >= alignment:
        raise FormatError(f"{path} holds {size} bytes and its header promises {position}: it was cut short or damaged.")
