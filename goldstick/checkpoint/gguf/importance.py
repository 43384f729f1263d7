"""Importance matrices as GGUF files: what the inputs of each matrix were on calibration text.

llama.cpp's tools write and read them: for a tensor T of the model, ``T.in_sum2`` float32 [matrices, in] is the sum of
squares of each input column over all tokens, and ``T.counts`` float32 [matrices, 1] how many tokens there were; experts
that saw none have a count of 0. The metadata say from which texts they are, in how many chunks of how many tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from goldstick.checkpoint.gguf.file import GgufFile, read_gguf
from goldstick.checkpoint.gguf.writer import GgufWriter
from goldstick.core.input_squares import InputSquares
from goldstick.errors import FormatError

_SUMS, _COUNTS = ".in_sum2", ".counts"
_TYPE = "imatrix"


def write_importance(
    file: Path, found: Mapping[str, InputSquares], *, datasets: list[str], chunks: int, chunk_size: int
) -> None:
    """Write an importance matrix as llama.cpp's own tool lays it out.

    Args:
        file: Where to write.
        found: Name of the tensor in the model's GGUF file → the squares of its inputs.
        datasets: What the text is called.
        chunks: How many pieces of text there were.
        chunk_size: Tokens of a piece.

    Raises:
        UsageError: The package ``gguf`` is not installed.
    """
    specs: dict[str, tuple[str, torch.Size]] = {}
    for name, squares in found.items():
        matrices, width = squares.sums.shape
        specs[name + _SUMS] = ("F32", torch.Size([matrices, 4 * width]))
        specs[name + _COUNTS] = ("F32", torch.Size([matrices, 4]))
    metadata = {
        "general.type": _TYPE,
        "imatrix.datasets": datasets,
        "imatrix.chunk_count": chunks,
        "imatrix.chunk_size": chunk_size,
    }
    with GgufWriter(file, _TYPE, metadata, specs) as writer:
        for name, squares in found.items():
            writer.write(name + _SUMS, squares.sums.float())
            writer.write(name + _COUNTS, squares.counts.float())


def read_importance(file: Path) -> dict[str, InputSquares]:
    """Read an importance matrix, of goldstick's or of llama.cpp's.

    Raises:
        FormatError: It is no such file, or a tensor lacks its other half, has another shape than that, or holds a
            number that is negative, NaN or infinite.
    """
    header = read_gguf(file)
    if header.metadata.get("general.type") != _TYPE:
        raise FormatError(
            f"{file} is no importance matrix: its general.type is {header.metadata.get('general.type')!r}."
        )
    names = [name.removesuffix(_SUMS) for name in header.tensors if name.endswith(_SUMS)]
    halves = {name + half for name in names for half in (_SUMS, _COUNTS)}
    odd = sorted(halves ^ header.tensors.keys())
    if odd:
        raise FormatError(f"{file} holds {odd[0]!r} without its other half: sums end in {_SUMS}, counts in {_COUNTS}.")
    return {name: _squares(header, name) for name in names}


def quantized_with(file: str, dataset: str, entries: int, chunks: int) -> dict[str, str | int]:
    """What a model's file says of the importance matrix it was made with, as llama.cpp's quantizer writes it.

    Args:
        file: Name of its file; empty where it was never in one.
        dataset: What the text is called; empty where nobody knows.
        entries: How many tensors it is of.
        chunks: How many pieces of text there were; 0 where nobody knows.
    """
    said: dict[str, str | int] = {"file": file, "dataset": dataset, "entries_count": entries, "chunks_count": chunks}
    return {f"quantize.imatrix.{key}": value for key, value in said.items() if value}


def quantized_with_file(file: Path) -> dict[str, str | int]:
    """The same of a file; reads its header."""
    header = read_gguf(file)
    datasets, chunks = header.metadata.get("imatrix.datasets"), header.metadata.get("imatrix.chunk_count")
    first = datasets[0] if isinstance(datasets, list) and datasets else ""
    return quantized_with(
        file.name,
        first if isinstance(first, str) else "",
        sum(name.endswith(_SUMS) for name in header.tensors),
        chunks if type(chunks) is int and 0 < chunks < 1 << 32 else 0,
    )


def _squares(header: GgufFile, name: str) -> InputSquares:
    sums, counts = _numbers(header, name + _SUMS), _numbers(header, name + _COUNTS)
    sums, counts = sums.reshape(-1, sums.shape[-1]), counts.flatten()
    if len(sums) != len(counts):
        raise FormatError(f"{header.path}: {name!r} has sums of {len(sums)} matrices and counts of {len(counts)}.")
    return InputSquares(sums=sums, counts=counts)


def _numbers(header: GgufFile, name: str) -> Tensor:
    tensor = header.tensors[name]
    if tensor.type != "F32":
        raise FormatError(f"{header.path}: {name!r} is {tensor.type}; importance matrices are F32.")
    with header.path.open("rb") as stream:
        stream.seek(tensor.start)
        numbers = torch.frombuffer(bytearray(stream.read(tensor.nbytes)), dtype=torch.float32).reshape(tensor.shape)
    if not bool((torch.isfinite(numbers) & (numbers >= 0)).all()):
        raise FormatError(f"{header.path}: {name!r} holds numbers that are negative, NaN or infinite.")
    return numbers
