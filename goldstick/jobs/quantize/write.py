"""Write: the weights of a checkpoint, tensor by tensor from the source's files or from the model in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.algorithms.stage import CacheQuantizer
from goldstick.calibration.data.samples import CalibrationSet
from goldstick.calibration.validation import calibration_warnings
from goldstick.checkpoint.entries import Entry
from goldstick.checkpoint.gguf.entries import write_gguf
from goldstick.checkpoint.kv_cache import StoredKV
from goldstick.checkpoint.shards import write_entries
from goldstick.core.division import slow_ranks
from goldstick.core.error import WeightError
from goldstick.core.input_squares import InputSquares
from goldstick.core.progress import Progress
from goldstick.core.ranks import Ranks
from goldstick.formats.base import StorageFormat, StoredLayer
from goldstick.formats.stored_piece import StoredPiece
from goldstick.hf.cache import quantized_cache_of
from goldstick.hf.example_inputs import give_inputs, given_inputs, inputs_for
from goldstick.hf.model_in_memory import config_of, ignored, names_of
from goldstick.hf.names import CheckpointNames
from goldstick.hf.pruned_config import describe_cuts
from goldstick.jobs.load.load import load_float
from goldstick.jobs.plan.choose_format import format_in_memory
from goldstick.jobs.plan.in_memory import InMemoryResult, run_on_whole
from goldstick.jobs.plan.plan import Plan, planned_gguf
from goldstick.jobs.plan.planned_tensors import PlannedTensor
from goldstick.jobs.proof.observation import Observation, observe_or_say
from goldstick.jobs.quantize.stream import SourceReader, stream_entries
from goldstick.jobs.save.pieces import float_tensors, kv_to_store, quantized_pieces, save_entries, stored_bytes
from goldstick.recipes.resolve import Resolution
from goldstick.recipes.rotate import rotate
from goldstick.recipes.train import train_stages
from goldstick.structure.network import Network, Site
from goldstick.training import TrainingTask

#: Gives the calibration data for a model in memory.
Calibrate = Callable[[nn.Module], CalibrationSet]


@dataclass(frozen=True, kw_only=True)
class PrunedPlan:
    """What a checkpoint is of, where channels were cut and it is not what the plan foresaw.

    Attributes:
        network: The network, with the sites it had before anything was rounded.
        resolution: What the recipe means for it.
        format: The storage format.
        config: Its config.json.
        ignored: Modules whose matrices stay float.
        bytes_after: Parameter or buffer → bytes stored for it.
    """

    network: Network
    resolution: Resolution
    format: StorageFormat
    config: Mapping[str, Any] | None
    ignored: Sequence[str]
    bytes_after: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class WriteResult:
    """What was written, beside the files themselves.

    Attributes:
        hashes: sha256 of every file of weights.
        layers: Everything quantized, as stored.
        errors: Site → how far its weight lies from the original.
        notes: Site → what its algorithm found out.
        expected: What the model in memory gave, for the proof; ``None`` where none was built.
        not_run: Why it gave nothing, where it does not run.
        source_hashes: sha256 of every file of the source that was read through.
        audit: What the report says of the data.
        warnings: What the user should know.
        kv: What is stored of a quantized KV cache, beside its tensors, which are written.
        account: The report's account of the rotation, the training, the pruning and the KV cache.
        pruned: What the network has become, where channels were cut.
        ranks: How long each process worked and waited, where there were several.
        measured: Site → the squares of its inputs, where these were asked for.
    """

    hashes: dict[str, str]
    layers: Sequence[StoredLayer]
    errors: Mapping[str, WeightError]
    notes: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    expected: Observation | None = None
    not_run: str = ""
    source_hashes: Mapping[str, str] = field(default_factory=dict)
    audit: Mapping[str, int | float | str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    kv: StoredKV | None = None
    account: Mapping[str, Any] = field(default_factory=dict)
    pruned: PrunedPlan | None = None
    ranks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    measured: Mapping[str, InputSquares] = field(default_factory=dict)


def write_streamed(
    plan: Plan, folder: Path, device: torch.device, progress: Progress, ranks: Ranks | None = None
) -> WriteResult:
    """Carry out a plan that streams: one tensor in memory at a time, or those of a window where ranks divide them."""
    ranks = ranks or Ranks()
    reader = SourceReader()
    errors: dict[str, WeightError] = {}
    entries = stream_entries(plan, reader, errors, device, ranks)
    layout = planned_gguf(plan)
    if layout is not None:
        hashes = write_gguf(folder, list(entries), layout, progress, plan.recipe.export.max_shard_size)
    else:
        hashes = write_entries(folder, entries, plan.recipe.export.max_shard_size, progress)
    account = ranks.account()
    stage = plan.resolution.first(CacheQuantizer)
    settings = stage.solve({}) if stage is not None else None  # a dynamic cache: a static one looks at data
    return WriteResult(
        hashes=hashes,
        layers=[tensor.stored for tensor in plan.tensors if tensor.stored],
        errors=errors,
        source_hashes=reader.hashes(),
        warnings=slow_ranks(account.get("work_seconds", ())),
        ranks=account,
        kv=kv_to_store(plan.network, settings, plan.format, CheckpointNames(plan.network.model)),
        account={"kv_cache": {"scheme": stage.scheme.label}} if stage is not None else {},
    )


@dataclass(frozen=True, kw_only=True)
class InMemory:
    """A plan's whole model in memory, and what its stages look at.

    Attributes:
        network: The model, in float.
        data: Calibration data; ``None`` where no stage looks at any.
        training: What it trains on; ``None`` where no stage trains.
        states: Where distillation leaves its state after each epoch; ``None`` for nowhere.
    """

    network: Network
    data: CalibrationSet | None
    training: TrainingTask | None
    states: Path | None = None


def in_memory(plan: Plan, device: torch.device, calibrate: Calibrate | None, directory: Path | None = None) -> InMemory:
    """Load a plan's model and its data.

    Args:
        plan: The plan.
        device: Where the model goes.
        calibrate: Gives the data for the model.
        directory: Where trainings leave a checkpoint after each epoch, and go on from it.
    """
    network = Network(load_float(plan.source.directory).to(device))
    give_inputs(network.model, given_inputs(plan.network.model))
    data = calibrate(network.model) if calibrate is not None and plan.calibrated else None
    if data is None or not plan.resolution.trains:
        return InMemory(network=network, data=data, training=None, states=directory)
    batches = data.training_batches(plan.recipe.calibration.training_batch)
    task = TrainingTask(batches=batches, directory=directory)
    return InMemory(network=network, data=data, training=task, states=directory)


def write_whole(
    plan: Plan, folder: Path, model: InMemory, progress: Progress, *, measures: bool = False
) -> WriteResult:
    """Carry out a plan on the whole model in memory, which is another one then."""
    network, data = model.network, model.data
    batches: Sequence[Mapping[str, Tensor]] = data.batches() if data else ()
    measured: dict[str, InputSquares] = {}

    def keep(site: Site, squares: InputSquares) -> None:
        measured[site.name] = squares

    about = (plan.resolution, plan.rotation, batches, progress, model.training)
    whole = run_on_whole(network, *about, keep if measures else None, model.states)
    network = whole.network
    if whole.cuts:
        describe_cuts(network, whole.account["pruning"], whole.cuts)
    expected, not_run = observe_or_say(network.model, plan.source.directory)
    names = CheckpointNames(plan.network.model)
    if whole.cuts:
        names = names_of(network.model) or names
    pieces = quantized_pieces(network, whole.resolution, names)
    floats = float_tensors(network, names, every_end=whole.resolution.stores_ties_apart(network))
    storage, told = plan.format, list[str]()
    if whole.cuts:
        storage, told = format_in_memory(network.model, plan.recipe.export.format, pieces, whole.resolution.ties)
    kv = kv_to_store(network, quantized_cache_of(network.model), storage, names)
    notes = {name: result.notes for name, result in whole.results.items()}
    entries = save_entries(pieces, {**floats, **(kv.tensors if kv else {})}, storage)
    entries += [
        Entry(name=tensor.name, outputs=tensor.outputs, produce=partial(_copied, tensor)) for tensor in plan.unused
    ]
    return WriteResult(
        hashes=write_entries(folder, entries, plan.recipe.export.max_shard_size, progress),
        layers=[piece.layer for piece in pieces],
        errors={name: result.error for name, result in whole.results.items()},
        notes=notes,
        expected=expected,
        not_run=not_run,
        audit=data.audit() if data else {},
        warnings=[*(data.warnings() if data else ()), *told, *calibration_warnings(notes)],
        kv=kv,
        account=whole.account,
        measured=measured,
        pruned=_pruned_plan(whole, pieces, storage, ignored(network, pieces, floats, names)) if whole.cuts else None,
    )


def _copied(tensor: PlannedTensor) -> dict[str, Tensor]:
    return {tensor.name: tensor.source.read()}


def train_alongside(plan: Plan, model: InMemory, progress: Progress) -> None:
    """The part of a further process that torchrun started in a plan that the first carries out: to train with it."""
    network = model.network
    if plan.rotation is not None:
        inputs = inputs_for(network.model)
        assert inputs is not None  # the rotation was found with them
        network, _ = rotate(network, plan.rotation, inputs)
    train_stages(network, plan.resolution, model.training, progress)


def _pruned_plan(
    whole: InMemoryResult, pieces: list[StoredPiece], storage: StorageFormat, ignored: Sequence[str]
) -> PrunedPlan:
    floats, quantized = stored_bytes(whole.network, pieces, storage)
    return PrunedPlan(
        network=whole.network,
        resolution=whole.resolution,
        format=storage,
        config=config_of(whole.network.model),
        ignored=ignored,
        bytes_after=floats | quantized,
    )
