"""Tensors of a GGUF file in block types that goldstick does not run: the numbers that their blocks stand for.

Most IQ types and ternary ones, and NVFP4, by the ``gguf`` package's own readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from goldstick.checkpoint.gguf.file import NUMBER_OF_TYPE
from goldstick.checkpoint.gguf.writer import gguf_package
from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.errors import FormatError

#: Types that are read so; of the others of ggml none holds weights.
DEQUANTIZED = frozenset(
    [
        "TQ1_0",
        "TQ2_0",
        "NVFP4",
        "IQ2_XXS",
        "IQ2_XS",
        "IQ2_S",
        "IQ3_XXS",
        "IQ3_S",
        "IQ1_S",
        "IQ1_M",
    ]
)
#: Weights that are dequantized at a time.
_AT_ONCE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class DequantizedTensor(TensorInfo):
    """A matrix of a GGUF file in float; ``dtype`` and ``shape`` are what reading gives.

    Attributes:
        kind: Name of its ggml type.
        blocks: Its bytes in the file, uint8 [rows, bytes of a row].
    """

    kind: str
    blocks: TensorInfo

    @property
    def stored_nbytes(self) -> int:
        """Bytes of its blocks."""
        return self.blocks.nbytes

    @property
    def stored_as(self) -> str:
        """Its ggml type."""
        return self.kind

    def read(self, digest: Any = None) -> Tensor:
        """The numbers, rounded to ``dtype`` once; ``digest`` is fed the bytes of the file.

        Raises:
            FormatError: The file ends inside the tensor, or a scale of its blocks is NaN or infinite.
            UsageError: The package ``gguf`` is not installed.
        """
        package = gguf_package(f"{self.file} holds {self.kind} blocks, which are read")
        blocks, kind = self.blocks.read(digest).numpy(), package.GGMLQuantizationType(NUMBER_OF_TYPE[self.kind])
        numbers = torch.empty(self.shape, dtype=self.dtype)
        step = max(1, _AT_ONCE // self.shape[-1])
        for start in range(0, len(blocks), step):
            with numpy.errstate(all="ignore"):  # said below, with the tensor's name
                part = torch.from_numpy(package.quants.dequantize(blocks[start : start + step], kind))
            if not bool(part.isfinite().all()):
                raise FormatError(
                    f"{self.name} in {self.file} holds {self.kind} blocks whose scales are NaN or infinite. It is "
                    "damaged; fetch the file again."
                )
            numbers[start : start + step] = part
        return numbers
