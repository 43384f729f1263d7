"""Reads ``model.bin`` of CTranslate2, whose layout is that of its ``ModelReader`` and ``ModelSpec.save``.

All numbers are little-endian. A string is its length with the final zero (u16), then its bytes.

    u32 version of the layout; string, name of the specification; u32, its revision
    u32 count of variables, and for each: string, its name; u8, its rank; u32 for each dimension;
        u8, its type (from version 4 on); u32 bytes (from version 4 on), and these
    u32 count of aliases (from version 3 on), and for each: string, the name; string, whose values it has
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
_OLDEST = 4


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """What a file holds.

    Attributes:
        specification: Such as ``WhisperSpec``.
        variables: Tensors by name; floating ones in float32, 8-bit weights multiplied by their scales.
    """

    specification: str
    variables: dict[str, Tensor]


class _Words:
    def __init__(self, data: bytes | mmap.mmap) -> None:
        self.data, self.at = data, 0

    def numbers(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found

    def number(self, form: str) -> int:
        return self.numbers(form)[0]

    def string(self) -> str:
        return self.take(self.number("H")).rstrip(b"\0").decode()

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]


def read_model_file(path: Path) -> ModelFile:
    """Read all variables of a ``model.bin``, those of aliases included.

    Raises:
        ValueError: The layout is older than version 4, a type is unknown, or bytes follow the aliases.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        words = _Words(data)
        version = words.number("I")
        if version < _OLDEST:
            raise ValueError(f"{path}: layout {version} is older than {_OLDEST}")
        specification, _ = words.string(), words.number("I")
        stored = dict(_variable(words) for _ in range(words.number("I")))
        aliases = [(words.string(), words.string()) for _ in range(words.number("I"))]
        if words.at != len(data):
            raise ValueError(f"{path}: {len(data) - words.at} bytes follow the aliases")
    variables = {name: _dequantized(name, stored) for name in stored if not name.endswith("_scale")}
    return ModelFile(specification=specification, variables=variables | {new: variables[old] for new, old in aliases})


def _variable(words: _Words) -> tuple[str, np.ndarray]:
    name, rank = words.string(), words.number("B")
    shape, kind, size = words.numbers(f"{rank}I"), words.number("B"), words.number("I")
    if kind >= len(_TYPES):
        raise ValueError(f"{name}: type {kind} is not one of {[kind.__name__ for kind in _TYPES]}")
    return name, np.frombuffer(words.take(size), dtype=_TYPES[kind]).reshape(shape)


def _dequantized(name: str, stored: dict[str, np.ndarray]) -> Tensor:
    """Codes / scale, a scale for each row; what has no scale as it is."""
    values, scale = stored[name], stored.get(f"{name}_scale")
    if scale is not None:
        rows = scale.astype(np.float32).reshape(-1, *[1] * (values.ndim - 1))
        return torch.from_numpy(values.astype(np.float32) / rows)
    floating = np.issubdtype(values.dtype, np.floating)
    return torch.from_numpy(values.astype(np.float32) if floating else values.copy())
