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
from goldstick.checkpoint.gguf.metadata import model_metadata, rope_factors
from goldstick.checkpoint.gguf.names import Family, family_of_config, rows_to_ggml, to_ggml, turned_heads
from goldstick.checkpoint.gguf.tensors import FLOATS, ROPE_FACTORS
from goldstick.checkpoint.gguf.tokenizer import tokenizer_metadata
from goldstick.checkpoint.gguf.writer import GgufWriter, require_package
from goldstick.core.progress import Progress
from goldstick.errors import FormatError
from goldstick.formats.gguf import GGUF_NAME
from goldstick.formats.gguf_blocks import BY_SUFFIX

_TYPES = {dtype: name for name, dtype in FLOATS.items()}


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where an output of an entry goes."""

    name: str
    type: str
    shape: torch.Size
    heads: int | None


@dataclass(frozen=True, kw_only=True)
class GgufLayout:
    """Everything of a GGUF file but the tensors' bytes.

    Attributes:
        family: What the model is to ggml.
        metadata: Its entries.
        places: Output → name, type, shape in bytes and heads of the tensor in the file.
        factors: Factors of the rotary frequencies, where the model has them.
    """

    family: Family
    metadata: Mapping[str, Any]
    places: Mapping[str, _Place]
    factors: Tensor | None


def gguf_layout(outputs: Specs, config: Mapping[str, Any], directory: Path, name: str) -> GgufLayout:
    """Plan a GGUF file; reads the tokenizer, no weights.

    Args:
        outputs: What the checkpoint will hold, floats and blocks under transformers' names: name → (shape, dtype).
        config: The model's config with defaults filled in.
        directory: Where its tokenizer lies.
        name: The model's name.

    Raises:
        FormatError: The model, a tensor or the tokenizer has no place in a GGUF file.
        UsageError: The package ``gguf`` is not installed.
    """
    require_package()
    family = family_of_config(config)
    heads = int(config["num_attention_heads"])
    counts = heads, int(config.get("num_key_value_heads") or heads)
    places = {output: _place(output, shape, dtype, family, counts) for output, (shape, dtype) in outputs.items()}
    types = [place.type for place in places.values() if len(place.shape) == 2]
    metadata = model_metadata(config, name, types) | tokenizer_metadata(directory, int(config["vocab_size"]))
    return GgufLayout(family=family, metadata=metadata, places=places, factors=rope_factors(config))


def write_gguf(directory: Path, entries: Sequence[Entry], layout: GgufLayout, progress: Progress) -> dict[str, str]:
    """Write entries into ``model.gguf``.

    Returns:
        The file's name and sha256.
    """
    specs = {place.name: (place.type, place.shape) for place in layout.places.values()}
    if layout.factors is not None:
        specs = {ROPE_FACTORS: ("F32", torch.Size([4 * layout.factors.numel()])), **specs}
    file = directory / GGUF_NAME
    with GgufWriter(file, layout.family.architecture, layout.metadata, specs) as writer:
        if layout.factors is not None:
            writer.write(ROPE_FACTORS, layout.factors)
        for done, entry in enumerate(entries):
            progress("writing", done, len(entries))
            tensors = entry.produce()
            for output in entry.outputs:
                place, tensor = layout.places[output], tensors[output]
                vector = tensor.float() if tensor.ndim == 1 else tensor
                writer.write(place.name, rows_to_ggml(vector, place.heads))
    progress("writing", len(entries), len(entries))
    with file.open("rb") as written:
        return {GGUF_NAME: hashlib.file_digest(written, "sha256").hexdigest()}


def _place(output: str, shape: torch.Size, dtype: torch.dtype, family: Family, counts: tuple[int, int]) -> _Place:
    weight, kind = output, _TYPES.get(dtype)
    for suffix, block in BY_SUFFIX.items():
        if output.endswith(suffix):
            weight, kind = output.removesuffix(suffix), block.name
    name = to_ggml(weight, family)
    if kind is None or len(shape) > 2:
        words = f"{str(dtype).removeprefix('torch.')} {list(shape)}"
        raise FormatError(f"GGUF files of {family.architecture} have no place for {output!r} ({words}).")
    if len(shape) == 1:  # llama.cpp computes with norms and biases in float32
        kind, size = "F32", torch.Size([4 * shape[0]])
    else:
        size = torch.Size([shape[0], shape[1] * dtype.itemsize])
    return _Place(name=name, type=kind, shape=size, heads=turned_heads(name, family, *counts))
