"""The entries of a checkpoint as one GGUF file, one entry in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from goldstick.checkpoint.entries import Entry, Specs
from goldstick.checkpoint.gguf.architecture import Architecture
from goldstick.checkpoint.gguf.architectures import architecture_of_config
from goldstick.checkpoint.gguf.arrangement import Arrangement
from goldstick.checkpoint.gguf.card import card_metadata
from goldstick.checkpoint.gguf.factors import factor_place, require_multiplied
from goldstick.checkpoint.gguf.metadata import head_counts_of, model_metadata, pooling_metadata
from goldstick.checkpoint.gguf.names import Place, place_of
from goldstick.checkpoint.gguf.rope import factor_tensors
from goldstick.checkpoint.gguf.shards import ShardedGgufWriter
from goldstick.checkpoint.gguf.tensors import FLOATS, arrangement_of, in_float32, unordered
from goldstick.checkpoint.gguf.tokenizer import tokenizer_metadata
from goldstick.checkpoint.gguf.writer import require_package
from goldstick.core.progress import Progress
from goldstick.errors import FormatError
from goldstick.formats.gguf import FACTOR
from goldstick.formats.gguf_blocks import BY_SUFFIX, NVFP4

_TYPES = {dtype: name for name, dtype in FLOATS.items()}


@dataclass(frozen=True, kw_only=True)
class _Part:
    """An output of an entry, and where it goes.

    Attributes:
        place: Where.
        type: ggml type of what is written.
        shape: Shape of its bytes, of a stack without the number of its matrices.
        arrangement: What happens to it first.
    """

    place: Place
    type: str
    shape: torch.Size
    arrangement: Arrangement


@dataclass(frozen=True, kw_only=True)
class GgufLayout:
    """Everything of a GGUF file but the tensors' bytes.

    Attributes:
        architecture: What the model is to ggml.
        metadata: Its entries.
        parts: Output → where it goes.
        specs: Tensor of the file → ggml type and shape of its bytes.
        factors: Factors of the rotary frequencies by name, where the model has them.
    """

    architecture: Architecture
    metadata: Mapping[str, Any]
    parts: Mapping[str, _Part]
    specs: Mapping[str, tuple[str, torch.Size]]
    factors: Mapping[str, Tensor]


def gguf_layout(
    outputs: Specs,
    config: Mapping[str, Any],
    directory: Path,
    name: str,
    card: Mapping[str, str | Sequence[str]] | None = None,
) -> GgufLayout:
    """Plan a GGUF file; reads the tokenizer, no weights.

    Args:
        outputs: What the checkpoint will hold, floats and blocks under transformers' names: name → (shape, dtype).
        config: The model's config with defaults filled in.
        directory: Where its tokenizer lies.
        name: The model's name.
        card: What the model's card says of licence, languages and base model.

    Raises:
        FormatError: The model, a tensor or the tokenizer has no place in a GGUF file.
        UsageError: The package ``gguf`` is not installed.
    """
    require_package()
    architecture = architecture_of_config(config)
    heads = head_counts_of(config, architecture)
    parts = {output: _part(output, shape, dtype, architecture, heads) for output, (shape, dtype) in outputs.items()}
    fp4 = {output: part.place for output, part in parts.items() if part.type == NVFP4.name}
    require_multiplied(fp4, outputs, architecture)
    factors = factor_tensors(config, architecture)
    specs = {name: ("F32", torch.Size([4 * factor.numel()])) for name, factor in factors.items()} | _specs(parts)
    if architecture.needs_head and "output.weight" not in specs:
        raise FormatError(
            f"llama.cpp asks for a head in models of the architecture {architecture.name!r}, and this one runs on its "
            "embedding. Use --format compressed-tensors or native."
        )
    types = [part.type for part in parts.values() if len(part.shape) == 2 and part.place.expert in (None, 0)]
    metadata = model_metadata(config, name, types)
    metadata |= pooling_metadata(directory, architecture) | card_metadata(card or {})
    metadata |= tokenizer_metadata(directory, int(config["vocab_size"]))
    return GgufLayout(architecture=architecture, metadata=metadata, parts=parts, specs=specs, factors=factors)


def write_gguf(
    directory: Path,
    entries: Sequence[Entry],
    layout: GgufLayout,
    progress: Progress,
    max_shard_size: int | None = None,
) -> dict[str, str]:
    """Write entries into ``model.gguf``, or into several files where a limit says so.

    Args:
        directory: Where.
        entries: What is written, one in memory at a time.
        layout: Everything else.
        progress: Told what is done.
        max_shard_size: Bytes of tensors that a file may have, 50 GB where ``None``.

    Returns:
        Name and sha256 of every file.
    """
    about = (layout.architecture.name, layout.metadata, layout.specs)
    with ShardedGgufWriter(directory, *about, max_shard_size) as writer:
        for name, factor in layout.factors.items():
            writer.write(name, factor)
        for done, entry in enumerate(entries):
            progress("writing", done, len(entries))
            tensors = entry.produce()
            for output in entry.outputs:
                part = layout.parts[output]
                for name, tensor in zip(part.place.names, part.arrangement.to_ggml(tensors[output]), strict=True):
                    value = tensor.float() if part.type == "F32" else tensor
                    writer.write(name, value, at=(part.place.expert or 0) * part.shape.numel())
    progress("writing", len(entries), len(entries))
    return {file.name: _sha256(file) for file in writer.files}


def _sha256(file: Path) -> str:
    with file.open("rb") as written:
        return hashlib.file_digest(written, "sha256").hexdigest()


def _part(
    output: str, shape: torch.Size, dtype: torch.dtype, architecture: Architecture, heads: tuple[int, int]
) -> _Part:
    if output.endswith(FACTOR):
        place = factor_place(output, architecture)
        return _Part(place=place, type="F32", shape=torch.Size([4]), arrangement=Arrangement())
    weight, kind = output, _TYPES.get(dtype)
    for suffix, block in BY_SUFFIX.items():
        if output.endswith(suffix):
            weight, kind = output.removesuffix(suffix), block.name
    place = place_of(weight, architecture)
    words = f"{output!r} ({str(dtype).removeprefix('torch.')} {list(shape)})"
    if kind is None or len(shape) > 3 or (len(shape) > 2 and place.expert is not None):
        raise FormatError(f"GGUF files of {architecture.name} have no place for {words}.")
    empty = torch.empty(shape, dtype=dtype, device="meta")
    turned = kind in FLOATS and place.kind.removesuffix(".weight") in architecture.transposed
    rows = shape[-1 if len(shape) == 1 or turned else -2]
    try:
        arrangement = arrangement_of(place, architecture, rows, heads)
    except ValueError as error:
        raise FormatError(f"The {rows} rows of {words} {error}.") from error
    found = unordered(arrangement).to_ggml(empty)[0].shape
    width = dtype.itemsize
    if kind in FLOATS and in_float32(place, len(shape)):  # llama.cpp computes with them in float32
        kind, width = "F32", 4
    return _Part(place=place, type=kind, shape=torch.Size([*found[:-1], found[-1] * width]), arrangement=arrangement)


def _specs(parts: Mapping[str, _Part]) -> dict[str, tuple[str, torch.Size]]:
    """Type and shape of every tensor of the file; matrices of experts are stacked.

    Raises:
        FormatError: An expert is missing, or experts differ.
    """
    given: dict[str, list[tuple[str, _Part]]] = {}
    for output, part in parts.items():
        for name in part.place.names:
            given.setdefault(name, []).append((output, part))
    specs = {}
    for name, found in given.items():
        output, first = found[0]
        for other, part in found:
            if (part.type, part.shape) != (first.type, first.shape):
                raise FormatError(
                    f"GGUF files hold all experts in one tensor, {name}, and {output} is stored as {first.type} and "
                    f"{other} as {part.type}. Give them one scheme."
                )
        experts = [part.place.expert for _, part in found]
        if experts == [None]:
            specs[name] = (first.type, first.shape)
        elif set(experts) == set(range(len(experts))):
            vector = len(first.shape) == 1  # a number for each
            stacked = [len(experts) * first.shape[0]] if vector else [len(experts), *first.shape]
            specs[name] = (first.type, torch.Size(stacked))
        else:
            raise FormatError(f"The experts stacked in {name} are numbered {experts[:8]}, with a gap or twice.")
    return specs
