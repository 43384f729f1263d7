"""Parcels: values on their way between processes, whose tensors arrive on the device of whoever takes them."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor


def packed(value: object) -> bytes:
    """A value as bytes. Tensors on a device go through the processor's memory."""
    buffer = io.BytesIO()
    _Packing(buffer).dump(value)
    return buffer.getvalue()


def unpacked(parcel: bytes, device: torch.device) -> Any:
    """The value of a parcel; what lay on a device where it was packed lies on ``device`` then."""
    return _Unpacking(io.BytesIO(parcel), device).load()


def size_of(value: object) -> int:
    """Bytes of the tensors in a value, nearly what it takes on its way."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return sum(map(size_of, vars(value).values())) if hasattr(value, "__dict__") else 0


class _Packing(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.detach().cpu() if isinstance(value, Tensor) and value.device.type != "cpu" else None


class _Unpacking(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, device: torch.device) -> None:
        super().__init__(buffer)
        self._device = device

    def persistent_load(self, found: Any) -> Tensor:
        moved: Tensor = found.to(self._device)
        return moved
