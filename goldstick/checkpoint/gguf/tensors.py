"""The tensors of a GGUF file as those of a checkpoint: under transformers' names, rows in transformers' order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.gguf.file import GgufFile, StoredTensor, read_gguf
from goldstick.checkpoint.gguf.names import (
    Family,
    family_of_architecture,
    rows_to_transformers,
    to_transformers,
    turned_heads,
)
from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.errors import FormatError
from goldstick.formats.gguf_blocks import BLOCK_TYPES

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
#: The factors by which rotary frequencies are divided; no tensor of transformers' checkpoints.
ROPE_FACTORS = "rope_freqs.weight"
_BLOCKS = {kind.name: kind for kind in BLOCK_TYPES}


@dataclass(frozen=True, kw_only=True)
class GgufTensor(TensorInfo):
    """A tensor of a GGUF file as a checkpoint's: ``dtype`` and ``shape`` are what reading gives.

    Attributes:
        stored: Dtype of its bytes in the file.
        heads: How many heads of rows lie pair by pair in the file.
    """

    stored: torch.dtype
    heads: int | None = None

    def read(self, digest: Any = None) -> Tensor:
        """The tensor, rows in transformers' order; ``digest`` is fed the bytes of the file.

        Raises:
            FormatError: The file ends inside the tensor, or its values are no numbers of the model's dtype.
        """
        plain = TensorInfo(
            name=self.name, file=self.file, dtype=self.stored, shape=self.shape, start=self.start, nbytes=self.nbytes
        )
        value = plain.read(digest)
        cast = value.to(self.dtype)
        if self.dtype != self.stored and not torch.equal(cast.to(self.stored), value):
            named = str(self.dtype).removeprefix("torch.")
            raise FormatError(
                f"{self.name} in {self.file} holds values that are no {named} numbers, which its config.json calls "
                'for. Set "dtype" there to float32.'
            )
        return rows_to_transformers(cast, self.heads)


def gguf_tensors(file: Path, vectors: torch.dtype = torch.float32) -> dict[str, TensorInfo]:
    """Every tensor of a GGUF file by its name in a checkpoint, in file order; reads the header only.

    Args:
        file: The file.
        vectors: What norms and biases, which GGUF holds in float32, are read as.

    Raises:
        FormatError: The file is damaged, or holds an architecture, a tensor or a type that goldstick does not read.
    """
    found = read_gguf(file)
    family = family_of_architecture(found.metadata.get("general.architecture"))
    heads = head_counts(found, family)
    infos = [
        _info(file, tensor, family, heads, vectors) for tensor in found.tensors.values() if tensor.name != ROPE_FACTORS
    ]
    return {info.name: info for info in infos}


def head_counts(file: GgufFile, family: Family) -> tuple[int, int]:
    """Numbers of heads and of key-value heads.

    Raises:
        FormatError: The file does not say, or says them by layer.
    """
    heads = file.metadata.get(f"{family.architecture}.attention.head_count")
    kv_heads = file.metadata.get(f"{family.architecture}.attention.head_count_kv", heads)
    if type(heads) is not int or type(kv_heads) is not int or not 0 < kv_heads <= heads <= 1 << 16:
        raise FormatError(
            f"{file.path} declares {heads!r} heads and {kv_heads!r} key-value heads; it is damaged or odd."
        )
    return heads, kv_heads


def _info(file: Path, tensor: StoredTensor, family: Family, heads: tuple[int, int], vectors: torch.dtype) -> GgufTensor:
    name, turned = to_transformers(tensor.name, family), turned_heads(tensor.name, family, *heads)
    if turned is not None and tensor.shape[0] % (2 * turned):
        raise FormatError(f"{file}: the {tensor.shape[0]} rows of {tensor.name!r} do not divide into {turned} heads.")
    shape, stored = tensor.shape, FLOATS.get(tensor.type)
    if stored is not None:
        vector = len(shape) == 1 and stored is torch.float32
        dtype = vectors if vector else stored
    elif tensor.type in _BLOCKS and len(shape) == 2:
        name += _BLOCKS[tensor.type].suffix
        shape = torch.Size([shape[0], tensor.nbytes // shape[0]])
        dtype = stored = torch.uint8
    else:
        raise FormatError(_refusal(file, tensor))
    return GgufTensor(
        name=name,
        file=file,
        dtype=dtype,
        shape=shape,
        start=tensor.start,
        nbytes=math.prod(shape) * stored.itemsize,
        stored=stored,
        heads=turned,
    )


def _refusal(file: Path, tensor: StoredTensor) -> str:
    known = ", ".join([*_BLOCKS, *FLOATS])
    return (
        f"{file}: the tensor {tensor.name!r} is stored as {tensor.type}, and goldstick reads {known}. Make the file "
        "anew from the float model with 'llama-quantize --pure IN OUT Q4_0' (or Q4_1, Q8_0), or convert it with "
        "'llama-quantize --allow-requantize --pure', which loses accuracy."
    )
