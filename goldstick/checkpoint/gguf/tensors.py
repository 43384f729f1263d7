"""The tensors of a GGUF file as those of a checkpoint: under transformers' names, rows in transformers' order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.gguf.architecture import Architecture
from goldstick.checkpoint.gguf.architectures import architecture_of_file
from goldstick.checkpoint.gguf.arrangement import Arrangement
from goldstick.checkpoint.gguf.dequantized import DEQUANTIZED, DequantizedTensor
from goldstick.checkpoint.gguf.factors import factor_info, factors_of
from goldstick.checkpoint.gguf.file import GgufFile, StoredTensor
from goldstick.checkpoint.gguf.names import Origin, Place, origin_of
from goldstick.checkpoint.gguf.shards import read_model
from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.errors import FormatError
from goldstick.formats.gguf_blocks import BY_SUFFIX

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
#: Factors by which rotary frequencies are divided; no tensors of transformers' checkpoints.
ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS = (
    f"{name}.weight" for name in ("rope_freqs", "rope_factors_long", "rope_factors_short")
)
#: Matrices that llama.cpp computes with in float32, less the number of the block.
_IN_FLOAT32 = frozenset(
    f"{name}.weight" for name in ("ffn_gate_inp", "ffn_gate_inp_shexp", "position_embd", "token_types")
)
#: A matrix of one row, which files hold as a vector.
_LONE = "ffn_gate_inp_shexp.weight"
_BLOCKS = {kind.name: kind for kind in BY_SUFFIX.values()}


@dataclass(frozen=True, kw_only=True)
class GgufTensor(TensorInfo):
    """A tensor of a GGUF file as a checkpoint's: ``dtype`` and ``shape`` are what reading gives.

    Attributes:
        pieces: What it lies in.
        arrangement: How.
    """

    pieces: tuple[TensorInfo, ...]
    arrangement: Arrangement

    @property
    def stored_nbytes(self) -> int:
        """Bytes that it takes in its file."""
        return sum(piece.stored_nbytes for piece in self.pieces)

    @property
    def stored_as(self) -> str:
        """Its ggml type, where reading turns blocks into numbers."""
        return self.pieces[0].stored_as

    def holds(self, tensor: Tensor) -> bool:
        """Whether it is a tensor, bit for bit; of one that is stored as a sum, whether the sum is the tensor's."""
        if not self.arrangement.shift:
            return super().holds(tensor)
        parts = [piece.read() for piece in self.pieces]
        sums = self.arrangement.to_ggml(tensor)
        return (tensor.shape, tensor.dtype) == (self.shape, self.dtype) and all(map(torch.equal, sums, parts))

    def read(self, digest: Any = None) -> Tensor:
        """The tensor, rows in transformers' order; ``digest`` is fed the bytes of the file.

        Raises:
            FormatError: The file ends inside the tensor, or its values are no numbers of the model's dtype.
        """
        parts = [piece.read(digest) for piece in self.pieces]
        cast = self.arrangement.to_transformers(parts).to(self.dtype)
        if self.dtype != parts[0].dtype:
            again = self.arrangement.to_ggml(cast)
            if not all(torch.equal(one.to(part.dtype), part) for one, part in zip(again, parts, strict=True)):
                named = str(self.dtype).removeprefix("torch.")
                raise FormatError(
                    f"{self.name} in {self.file} holds values that are no {named} numbers, which its config.json calls "
                    'for. Set "dtype" there to float32.'
                )
        return cast


def gguf_tensors(file: Path, vectors: torch.dtype = torch.float32) -> dict[str, TensorInfo]:
    """Every tensor of a GGUF model by its name in a checkpoint, in file order; reads headers only.

    Args:
        file: The file, or any of several.
        vectors: What norms, biases and the like, which GGUF holds in float32, are read as.

    Raises:
        FormatError: The file is damaged, or holds an architecture, a tensor or a type that goldstick does not read.
    """
    found = read_model(file)
    architecture = architecture_of_file(found.metadata.get("general.architecture"), [*found.tensors, *found.metadata])
    heads = head_counts(found, architecture)
    factors = factors_of(found.tensors, architecture)
    apart = {ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS, *(tensor.name for tensor in factors.values())}
    gathered: dict[str, dict[int, StoredTensor]] = {}
    origins: dict[str, Origin] = {}
    for tensor in found.tensors.values():
        if tensor.name not in apart:
            origin = origin_of(tensor.name, architecture)
            origins.setdefault(origin.name, origin)
            gathered.setdefault(origin.name, {})[origin.part] = tensor
    infos: dict[str, TensorInfo] = {}
    for name, parts in gathered.items():
        place = origins[name].place
        if len(parts) != len(place.names):
            lost = next(each for number, each in enumerate(place.names) if number not in parts)
            raise FormatError(f"{file} holds a part of {name} and lacks the tensor {lost!r}.")
        stored = [parts[number] for number in sorted(parts)]
        for info in _infos(file, origins[name], stored, architecture, heads, vectors, factors):
            infos[info.name] = info
    return infos


def head_counts(file: GgufFile, architecture: Architecture) -> tuple[int, int]:
    """Numbers of heads and of key-value heads.

    Raises:
        FormatError: The file does not say, or says them by layer.
    """
    heads = file.metadata.get(f"{architecture.name}.attention.head_count")
    kv_heads = file.metadata.get(f"{architecture.name}.attention.head_count_kv", heads)
    if type(heads) is not int or type(kv_heads) is not int or not 0 < kv_heads <= heads <= 1 << 16:
        raise FormatError(
            f"{file.path} declares {heads!r} heads and {kv_heads!r} key-value heads; it is damaged or odd."
        )
    return heads, kv_heads


def arrangement_of(place: Place, architecture: Architecture, rows: int, heads: tuple[int, int]) -> Arrangement:
    """How a tensor lies at a place of a file.

    Args:
        place: The place.
        architecture: Whose.
        rows: Rows of the matrix, or numbers of the vector.
        heads: Numbers of heads and of key-value heads.

    Raises:
        ValueError: The rows do not divide into heads.
    """
    module, _, leaf = place.kind.rpartition(".")
    order = architecture.rows.get(module)
    return Arrangement(
        order=None if order is None else order(rows, *heads),
        shift=1.0 if architecture.one_more and leaf == "weight" and module.endswith("norm") else 0.0,
        transposed=leaf == "weight" and module in architecture.transposed,
        split=place.split,
        vector=leaf == "bias" or module.endswith("norm") or module == "attn_sinks",
        lone=place.kind == _LONE,
    )


def in_float32(place: Place, dimensions: int) -> bool:
    """Whether a file holds a tensor that is not quantized in float32: vectors, and what llama.cpp wants so."""
    return dimensions == 1 or place.kind.endswith(".bias") or place.kind in _IN_FLOAT32


def _infos(
    file: Path,
    origin: Origin,
    stored: list[StoredTensor],
    architecture: Architecture,
    heads: tuple[int, int],
    vectors: torch.dtype,
    factors: Mapping[str, StoredTensor],
) -> Iterator[TensorInfo]:
    first = stored[0]
    if origin.stacked and len(first.shape) != 3:
        raise FormatError(f"{file}: {first.name!r} should hold a matrix for every expert, and is {list(first.shape)}.")
    if any((tensor.type, tensor.shape) != (first.type, first.shape) for tensor in stored):
        names = " and ".join(tensor.name for tensor in stored)
        raise FormatError(f"{file}: {names} are of different types or shapes, and are one tensor of the model.")
    vector = in_float32(origin.place, len(first.shape))
    rows = first.shape[-1 if len(first.shape) == 1 else -2]
    try:
        arrangement = arrangement_of(origin.place, architecture, rows, heads)
    except ValueError as error:
        raise FormatError(f"{file}: the {rows} rows of {first.name!r} {error}.") from error
    for expert in range(first.shape[0]) if origin.stacked else [None]:
        name = origin.name.format(expert)
        beside = factors.get(first.name)
        pieces = tuple(_piece(file, tensor, name, expert, vectors, packed=beside is not None) for tensor in stored)
        floats = FLOATS.get(first.type)
        dtype = vectors if vector and floats is torch.float32 else pieces[0].dtype
        if beside is not None:
            yield factor_info(beside, name, expert)
        if floats is None and (beside is not None or first.type not in DEQUANTIZED):
            name += _BLOCKS[first.type].suffix
        empty = [torch.empty(piece.shape, dtype=piece.dtype, device="meta") for piece in pieces]
        shape = unordered(arrangement).to_transformers(empty).shape
        yield GgufTensor(
            name=name,
            file=first.file,
            dtype=dtype,
            shape=shape,
            start=pieces[0].start,
            nbytes=shape.numel() * dtype.itemsize,
            pieces=pieces,
            arrangement=arrangement,
        )


def unordered(arrangement: Arrangement) -> Arrangement:
    """What changes the shape of a tensor alone, for tensors without numbers."""
    return dataclasses.replace(arrangement, order=None, shift=0.0)


def _piece(
    file: Path, tensor: StoredTensor, name: str, expert: int | None, vectors: torch.dtype, *, packed: bool
) -> TensorInfo:
    """The bytes of a tensor, or of one of the matrices stacked in it."""
    shape, start, nbytes = tensor.shape, tensor.start, tensor.nbytes
    if expert is not None:
        nbytes //= shape[0]
        start, shape = start + expert * nbytes, shape[1:]
    dtype = FLOATS.get(tensor.type)
    if dtype is None:
        if len(shape) < 2 or (tensor.type not in DEQUANTIZED and tensor.type not in _BLOCKS):
            raise FormatError(_refusal(file, tensor))
        dtype, row = torch.uint8, nbytes // math.prod(shape[:-1])
        rows = torch.Size([*shape[:-1], row])
    else:
        rows = shape
    bytes_ = TensorInfo(name=name, file=tensor.file, dtype=dtype, shape=rows, start=start, nbytes=nbytes)
    if packed or tensor.type not in DEQUANTIZED:
        return bytes_
    return DequantizedTensor(
        name=name,
        file=tensor.file,
        dtype=vectors,
        shape=shape,
        start=-1,
        nbytes=shape.numel() * vectors.itemsize,
        kind=tensor.type,
        blocks=bytes_,
    )


def _refusal(file: Path, tensor: StoredTensor) -> str:
    known = ", ".join([*_BLOCKS, *FLOATS, *sorted(DEQUANTIZED)])
    return (
        f"{file}: the tensor {tensor.name!r} is stored as {tensor.type} {list(tensor.shape)}, and goldstick reads "
        f"matrices of {known}. Make the file anew from the float model with 'llama-quantize IN OUT Q4_K_M' or another."
    )
