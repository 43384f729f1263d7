"""Write: the weights of a checkpoint, tensor by tensor from the source's files or from the model in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.calibration.data import CalibrationData
from goldstick.core.error import WeightError
from goldstick.formats.base import StoredLayer
from goldstick.formats.kv_cache import StoredKV
from goldstick.formats.transformers_cache import quantized_cache_of
from goldstick.formats.transformers_names import CheckpointNames
from goldstick.pipeline.entries import write_entries
from goldstick.pipeline.gguf_entries import write_gguf
from goldstick.pipeline.load import load_float
from goldstick.pipeline.observation import Observation, observe
from goldstick.pipeline.plan import Plan, planned_gguf
from goldstick.pipeline.save import float_tensors, kv_to_store, quantized_pieces, save_entries
from goldstick.pipeline.stream import SourceReader, stream_entries
from goldstick.pipeline.whole_network import run_on_whole
from goldstick.recipes.run import Progress
from goldstick.structure.network import Network

#: Gives the calibration data for a model in memory.
Calibrate = Callable[[nn.Module], CalibrationData]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was written, beside the files themselves.

    Attributes:
        hashes: sha256 of every file of weights.
        layers: Everything quantized, as stored.
        errors: Site → how far its weight lies from the original.
        notes: Site → what its algorithm found out.
        expected: What the model in memory gave, for the proof; ``None`` where none was built.
        source_hashes: sha256 of every file of the source that was read through.
        audit: What the report says of the data.
        warnings: What the user should know.
        kv: What is stored of a quantized KV cache, beside its tensors, which are written.
        account: The report's account of the rotation and the KV cache.
    """

    hashes: dict[str, str]
    layers: Sequence[StoredLayer]
    errors: Mapping[str, WeightError]
    notes: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    expected: Observation | None = None
    source_hashes: Mapping[str, str] = field(default_factory=dict)
    audit: Mapping[str, int | float | str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    kv: StoredKV | None = None
    account: Mapping[str, Any] = field(default_factory=dict)


def write_streamed(plan: Plan, folder: Path, device: torch.device, progress: Progress) -> Outcome:
    """Carry out a plan that streams: one tensor in memory at a time."""
    reader = SourceReader()
    errors: dict[str, WeightError] = {}
    entries = stream_entries(plan, reader, errors, device)
    layout = planned_gguf(plan)
    if layout is not None:
        hashes = write_gguf(folder, list(entries), layout, progress)
    else:
        hashes = write_entries(folder, entries, plan.recipe.export.max_shard_size, progress)
    stage = plan.resolution.kv
    settings = stage.solve({}) if stage is not None else None  # a dynamic cache: a static one looks at data
    return Outcome(
        hashes=hashes,
        layers=[tensor.stored for tensor in plan.tensors if tensor.stored],
        errors=errors,
        source_hashes=reader.hashes(),
        kv=kv_to_store(plan.network, settings, plan.format, CheckpointNames(plan.network.model)),
        account={"kv_cache": {"scheme": stage.scheme.label}} if stage is not None else {},
    )


def write_whole(
    plan: Plan, folder: Path, device: torch.device, calibrate: Calibrate | None, progress: Progress
) -> Outcome:
    """Carry out a plan on the whole model in memory."""
    network = Network(load_float(plan.source.directory).to(device))
    data = calibrate(network.model) if calibrate is not None and plan.calibrated else None
    batches: Sequence[Mapping[str, Tensor]] = data.batches() if data else ()
    whole = run_on_whole(network, plan.resolution, plan.rotation, batches, progress)
    network, results, account = whole.network, whole.results, whole.account
    expected = observe(network.model, plan.source.directory)
    names = CheckpointNames(plan.network.model)
    pieces = quantized_pieces(network, plan.resolution, names)
    kv = kv_to_store(network, quantized_cache_of(network.model), plan.format, names)
    entries = save_entries(pieces, {**float_tensors(network, names), **(kv.tensors if kv else {})}, plan.format)
    return Outcome(
        hashes=write_entries(folder, entries, plan.recipe.export.max_shard_size, progress),
        layers=[piece.layer for piece in pieces],
        errors={name: result.error for name, result in results.items()},
        notes={name: result.notes for name, result in results.items()},
        expected=expected,
        audit=data.audit() if data else {},
        warnings=data.warnings() if data else (),
        kv=kv,
        account=account,
    )
