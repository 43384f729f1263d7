"""Gathering: the shards of a run become the one file of a format that has its header first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goldstick.checkpoint.entries import Entry
from goldstick.checkpoint.gguf.entries import write_gguf
from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.checkpoint.source import open_tensors
from goldstick.core.progress import Progress
from goldstick.jobs.plan.plan import Plan, planned_gguf


def gathered(
    plan: Plan,
    shards: Path,
    folder: Path,
    hashes: dict[str, str],
    progress: Progress,
    audit: Mapping[str, Any],
    saved_as: str = "",
) -> dict[str, str]:
    """The file names and sha256 of a result: those of its shards, or of the GGUF file that is made of them.

    Args:
        plan: What was done.
        shards: Where the shards lie.
        folder: Where a GGUF file is written; one tensor is in memory at a time.
        hashes: File names and sha256 of the shards.
        progress: Told what is done.
        audit: Of the calibration data.
        saved_as: Name of the file that keeps what was measured of them.
    """
    layout = planned_gguf(plan, audit, saved_as)
    if layout is None:
        return hashes
    tensors = open_tensors(shards)
    return write_gguf(
        folder, [_entry(tensors[name]) for name in layout.parts], layout, progress, plan.recipe.export.max_shard_size
    )


def _entry(info: TensorInfo) -> Entry:
    outputs = {info.name: (info.shape, info.dtype)}
    return Entry(name=info.name, outputs=outputs, produce=lambda: {info.name: info.read()})
