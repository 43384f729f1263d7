"""Entries: what a checkpoint will hold, tensor by tensor, known by shape before any weight is read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from goldstick.formats.safetensors_file import SafetensorsWriter
from goldstick.formats.source import INDEX_NAME, SINGLE_NAME
from goldstick.pipeline.staging import write_file
from goldstick.recipes.run import Progress
from goldstick.report.storage import dump_json

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


def write_entries(directory: Path, entries: Iterable[Entry], max_shard_size: int, progress: Progress) -> dict[str, str]:
    """Write entries as safetensors shards, one entry in memory at a time.

    Returns:
        File name → sha256 of every file written, the index included.
    """
    shards = _shards(list(entries), max_shard_size)
    total = sum(len(shard) for shard in shards)
    hashes: dict[str, str] = {}
    weight_map: dict[str, str] = {}
    done = 0
    for index, shard in enumerate(shards):
        name = SINGLE_NAME if len(shards) == 1 else f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        specs = {output: spec for entry in shard for output, spec in entry.outputs.items()}
        with SafetensorsWriter(directory / name, specs) as writer:
            for entry in shard:
                progress("writing", done, total)
                tensors = entry.produce()
                for output in entry.outputs:
                    writer.write(output, tensors[output])
                done += 1
        hashes[name] = writer.sha256.hexdigest()
        weight_map.update(dict.fromkeys(specs, name))
    progress("writing", total, total)
    if len(shards) > 1:
        size = sum(entry.nbytes for shard in shards for entry in shard)
        text = dump_json({"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))})
        hashes[INDEX_NAME] = write_small(directory / INDEX_NAME, text.encode())
    return hashes


def write_small(path: Path, data: bytes) -> str:
    """Write a small file beside the weights, synced; returns its sha256."""
    write_file(path, data)
    return hashlib.sha256(data).hexdigest()


def _shards(entries: list[Entry], limit: int) -> list[list[Entry]]:
    shards: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if shards[-1] and size + entry.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += entry.nbytes
    return shards
