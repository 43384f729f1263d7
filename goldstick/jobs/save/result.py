"""Result: a compressed model in memory, its report, and how to save it."""

from __future__ import annotations

import dataclasses
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from goldstick import surgery
from goldstick.calibration.data.samples import count_batches
from goldstick.calibration.float_types import refuse_unfit
from goldstick.calibration.validation import calibration_warnings
from goldstick.checkpoint.shards import write_entries
from goldstick.checkpoint.sidecars import sidecars_of
from goldstick.checkpoint.staging import refuse_overlap, staged
from goldstick.core.counts import counted
from goldstick.core.edits import FoldNorm, Prune
from goldstick.core.error import WeightError
from goldstick.core.module_state import cannot_be_stored, held_tensors, shared_tensors
from goldstick.core.notices import NotStoredWarning, UnrecognisedWarning
from goldstick.core.processes import rank
from goldstick.core.progress import Progress, quiet
from goldstick.core.references import copy_of, left_behind, parameters_of
from goldstick.core.shared_storage import part_storage
from goldstick.core.torch_modes import as_written
from goldstick.errors import FormatError, UsageError
from goldstick.formats.stored_piece import StoredPiece
from goldstick.hf.cache import quantized_cache_of
from goldstick.hf.example_inputs import given_inputs, inputs_for
from goldstick.hf.model_in_memory import config_of, ignored, is_transformers, names_of
from goldstick.hf.pruned_config import describe_cuts
from goldstick.jobs.load.importance import with_given_importance
from goldstick.jobs.load.plain_module import tensor_hashes
from goldstick.jobs.plan.cache_refusal import refuse_without_cache
from goldstick.jobs.plan.choose_format import format_in_memory, loader_remarks
from goldstick.jobs.plan.in_memory import run_on_whole
from goldstick.jobs.proof.observation import Observation, buffer_dtypes, observe_or_say
from goldstick.jobs.save.finish import Content, prove_and_record, write_rest
from goldstick.jobs.save.pieces import (
    error_sums,
    float_tensors,
    kv_to_store,
    quantized_pieces,
    save_entries,
    stored_bytes,
)
from goldstick.jobs.save.records import environment, layer_records, shapes_of
from goldstick.jobs.save.structure import structure_of
from goldstick.kernels.input_bits import refuse_fewer_bits
from goldstick.nn.packed import PackedWeight, packed_tensors
from goldstick.recipes import Recipe
from goldstick.recipes.found_rotation import find_rotation, turn_quantized
from goldstick.recipes.measured import resolve_recipe
from goldstick.recipes.resolve import Resolution
from goldstick.recipes.rewrite import rewrite
from goldstick.recipes.rewriting_refusal import refuse_rewriting
from goldstick.report import Report, SizeSummary
from goldstick.report.heat_map import drawable
from goldstick.report.page import write_page
from goldstick.structure.network import Network
from goldstick.training import TrainingTask


@dataclass(frozen=True, kw_only=True)
class Result:
    """What :func:`goldstick.apply` gives.

    Attributes:
        model: The compressed model, ready to run.
        report: What was done.
    """

    model: nn.Module
    report: Report
    _network: Network
    _resolution: Resolution
    _recipe: Recipe
    _errors: Mapping[str, WeightError]
    _cuts: Sequence[Prune] = ()
    _folds: Sequence[FoldNorm] = ()
    _packed_before: Sequence[str] = ()

    @as_written()
    def save(self, directory: str | Path, *, overwrite: bool = False, progress: Progress = quiet) -> Path:
        """Write the model as a checkpoint, read it back in a fresh process, and compare.

        A transformers model is stored as its recipe says; its tokenizer files are carried on from the directory it was
        loaded from. Any other module is stored in the native format. Of several processes that torchrun started the
        first writes; the others go on at once.

        Raises:
            OutputError: The directory exists or cannot be written.
            FormatError: The recipe's format cannot hold the result, or no checkpoint can hold something that its
                modules hold.
            UsageError: Layers were quantized before, of which this result knows nothing; or inputs are rounded to 8
                bits, which the process that proves the checkpoint does not.
            CheckpointError: What was read back is not what was written.
        """
        refuse_fewer_bits()
        if self._packed_before:
            raise UsageError(
                f"{self._packed_before[0]} was quantized before ({counted(len(self._packed_before), 'layer')}), and "
                "this result knows nothing of how. goldstick.quantize(directory, …) takes quantized checkpoints."
            )
        if problem := cannot_be_stored(self.model):
            raise FormatError(problem)
        if rank() == 0:
            self._write(Path(directory), overwrite, progress)
        return Path(directory)

    def _write(self, directory: Path, overwrite: bool, progress: Progress) -> None:
        names = names_of(self.model)
        pieces = quantized_pieces(self._network, self._resolution, names)
        storage, _ = format_in_memory(self.model, self._recipe.export.format, pieces, self._resolution.ties)
        apart = names is not None and self._resolution.stores_ties_apart(self._network)
        floats = float_tensors(self._network, names, every_end=apart)
        kv = kv_to_store(self._network, quantized_cache_of(self.model), storage, names)
        config, origin = config_of(self.model), _origin(self.model)
        if origin is not None:
            refuse_overlap(directory, {"source": origin})
        with staged(directory, overwrite) as work:
            entries = save_entries(pieces, {**floats, **(kv.tensors if kv else {})}, storage)
            hashes = write_entries(work, entries, self._recipe.export.max_shard_size, progress)
            content = Content(
                config=config,
                sidecars={} if origin is None else sidecars_of(origin),
                format=storage,
                layers=[piece.layer for piece in pieces],
                ignored=ignored(self._network, pieces, floats, names),
                ties=self._resolution.ties,
                untied=self._resolution.untied,
                recipe=self._recipe,
                source={"name": origin.name if origin else type(self.model).__name__, "files": {}},
                base_model=self.report.model,
                errors=error_sums(self._errors),
                kv=kv,
                inputs=given_inputs(self.model),
                architecture={} if names else _architecture(self.model, self._cuts, self._folds, pieces),
            )
            write_rest(work, content, hashes)
            proof = prove_and_record(work, *_proof_request(self.model, config is not None, origin))
            self._final_report(storage.name, proof).write(work)
            write_page(work)

    def _final_report(self, format_name: str, proof: Mapping[str, Any]) -> Report:
        found = {key: value for key, value in proof.items() if key != "observed"}
        return dataclasses.replace(self.report, format=format_name, proof=found)


@as_written()
def apply_recipe(
    model: nn.Module,
    recipe: Recipe,
    *,
    inplace: bool,
    batches: Sequence[Mapping[str, Tensor]] = (),
    training: TrainingTask | None = None,
    progress: Progress = quiet,
) -> Result:
    """Compress a model in memory; see :func:`goldstick.apply`."""
    if is_transformers(model):
        refuse_rewriting(recipe.stages, f"the transformers model {type(model).__name__}")
    if inplace:
        part_storage(model)
    before_rewriting = model
    packed = [name for name, module in model.named_modules() if isinstance(module, PackedWeight)]
    model, folds = rewrite(model, recipe.stages, inputs_for(model, batches), inplace=inplace)
    inplace = inplace or model is not before_rewriting
    original = Network(model)
    rotation = find_rotation(recipe.stages, original, partial(inputs_for, model, batches))
    if rotation is not None:
        original = Network(model, cut=rotation.plan.unties)
    resolution = with_given_importance(resolve_recipe(recipe, original), original)
    surgery.refuse_modules(original, [*resolution.assignments, *resolution.ties])
    rotation, resolution = turn_quantized(rotation, resolution)
    refuse_without_cache(model, resolution)
    refuse_unfit(_meant(original, resolution), type(model).__name__)
    unfit = _not_to_be_stored(model)
    before = {name: value.nbytes for name, value in float_tensors(original, None).items()}
    shapes, structure = shapes_of(original), structure_of(model)
    target = model if inplace else copy_of(model)
    network = Network(target, cut=original.cut)
    held = parameters_of(target)
    whole = run_on_whole(network, resolution, rotation, batches, progress, training)
    network, resolution, results, account = whole.network, whole.resolution, whole.results, whole.account
    if whole.cuts and is_transformers(target):
        describe_cuts(network, account["pruning"], whole.cuts)
    errors = {name: result.error for name, result in results.items()}
    notes = {name: result.notes for name, result in results.items()}
    pieces = quantized_pieces(network, resolution, names_of(target))
    storage, remarks = format_in_memory(target, recipe.export.format, pieces, resolution.ties)
    if is_transformers(target) and not whole.cuts:
        remarks += loader_remarks(storage, [piece.layer for piece in pieces], target)
    floats, quantized = stored_bytes(network, pieces, storage)
    layers = layer_records(network, shapes, resolution, errors, before, floats | quantized, notes, cut=bool(whole.cuts))
    report = Report(
        goldstick_version=environment()["goldstick"],
        model=getattr(model, "name_or_path", "") or type(model).__name__,
        recipe=recipe.model_dump(mode="json"),
        format=storage.name,
        layers=layers,
        size=SizeSummary.of(layers),
        structure=structure,
        sensitivity=drawable(recipe.sensitivity),
        search=recipe.search,
        calibration=count_batches(batches),
        **account,
        warnings=(*remarks, *unfit, *calibration_warnings(notes), *_left_behind(target, held)),
        environment=environment(),
    )
    return Result(
        model=target,
        report=report,
        _network=network,
        _resolution=resolution,
        _recipe=recipe,
        _errors=errors,
        _cuts=whole.cuts,
        _folds=folds,
        _packed_before=packed,
    )


def _meant(network: Network, resolution: Resolution) -> dict[str, Tensor]:
    """The parameters of all layers that are to be quantized."""
    holders = {one.site.module: network.module(one.site) for one in resolution.assignments.values()}
    return {
        f"{path}.{name}": parameter
        for path, module in holders.items()
        for name, parameter in module.named_parameters(recurse=False)
    }


def _left_behind(model: nn.Module, parameters: Mapping[str, weakref.ref[nn.Parameter]]) -> list[str]:
    """What is said, and told at once, of references to float weights that the quantized layers do not see."""
    said = [
        f"{path} refers to the parameter {name} itself, so what reads it there reads float numbers: let it read "
        f"{name} from its module."
        for path, name in left_behind(model, parameters).items()
    ]
    for sentence in said:
        warnings.warn(sentence, UnrecognisedWarning, stacklevel=4)
    return said


def _architecture(
    model: nn.Module, cuts: Sequence[Prune], folds: Sequence[FoldNorm], pieces: Sequence[StoredPiece]
) -> dict[str, Any]:
    """What it takes to make the network that was stored out of the one that the user builds, in this order."""
    packed = set(packed_tensors(model))
    found = {
        "folded_norms": [fold.to_dict() for fold in folds],
        "pruned": [cut.to_dict() for cut in cuts],
        "shared": shared_tensors({name: one for name, one in held_tensors(model).items() if name not in packed}),
        "computes_in": {
            piece.layer.site: str(piece.tensor.scale.dtype).removeprefix("torch.")
            for piece in pieces
            if piece.layer.scheme.weight.scale is not None  # stored as codes, which do not say it
        },
    }
    return {name: told for name, told in found.items() if told}


def _not_to_be_stored(model: nn.Module) -> list[str]:
    """What is said, and told at once, of what a model holds that no checkpoint can hold."""
    problem = cannot_be_stored(model)
    said = [f"The result runs, and cannot be saved. {problem}"] if problem else []
    for sentence in said:
        warnings.warn(sentence, NotStoredWarning, stacklevel=4)
    return said


def _origin(model: nn.Module) -> Path | None:
    directory = Path(getattr(model, "name_or_path", "") or "/nonexistent")
    return directory if directory.is_dir() else None


def _proof_request(
    model: nn.Module, is_transformers: bool, origin: Path | None
) -> tuple[dict[str, Any], Observation | None, str]:
    if is_transformers:
        attention = getattr(model.config, "_attn_implementation", None)
        request = {"method": "outputs", "attention": attention, "buffers": buffer_dtypes(model)}
        return request, *observe_or_say(model, origin)
    return {"method": "stored", "tensors": tensor_hashes(model)}, None, ""
