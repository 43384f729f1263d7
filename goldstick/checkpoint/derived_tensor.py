"""A tensor that no file holds as it is: made, when it is read, from those that a checkpoint stores."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.safetensors_file import TensorInfo


@dataclass(frozen=True, kw_only=True)
class DerivedTensor(TensorInfo):
    """A tensor that is made from others when it is read; ``dtype`` and ``shape`` are what reading gives.

    Attributes:
        make: Reads what it is made from, and makes it.
        parts_nbytes: Bytes of what it is made from.
    """

    make: Callable[[], Tensor]
    parts_nbytes: int

    @property
    def stored_nbytes(self) -> int:
        """Bytes that what it is made from takes in its files."""
        return self.parts_nbytes

    @classmethod
    def of(
        cls,
        name: str,
        spec: tuple[torch.Size, torch.dtype],
        parts: Collection[TensorInfo],
        make: Callable[[], Tensor],
    ) -> DerivedTensor:
        """The tensor of a shape and dtype that ``make`` gives, reading ``parts``."""
        shape, dtype = spec
        first = next(iter(parts))
        return cls(
            name=name,
            file=first.file,
            dtype=dtype,
            shape=shape,
            start=-1,  # where no tensor starts: what is read is no run of bytes, of which a file's hash could be made
            nbytes=shape.numel() * dtype.itemsize,
            make=make,
            parts_nbytes=sum(part.nbytes for part in parts),
        )

    def read(self, digest: Any = None) -> Tensor:
        """The tensor.

        Raises:
            FormatError: What it is made from ends too early, or does not belong together.
        """
        return self.make()
