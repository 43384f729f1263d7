"""Entries: what a checkpoint will hold, tensor by tensor, known by shape before any weight is read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from goldstick.checkpoint.staging import write_file

Specs = dict[str, tuple[torch.Size, torch.dtype]]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One float tensor of the model and what stands for it in the checkpoint.

    Attributes:
        name: Its name in the checkpoint.
        outputs: The tensors written for it: name → (shape, dtype).
        produce: Makes those tensors; called once, when their turn has come.
    """

    name: str
    outputs: Specs
    produce: Callable[[], Mapping[str, Tensor]]

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return specs_nbytes(self.outputs)


def specs_nbytes(specs: Specs) -> int:
    """Bytes of tensors of given shapes and dtypes."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in specs.values())


def write_small(path: Path, data: bytes) -> str:
    """Write a small file beside the weights, synced; returns its sha256."""
    write_file(path, data)
    return hashlib.sha256(data).hexdigest()
