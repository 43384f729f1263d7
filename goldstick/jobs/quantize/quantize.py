"""Quantize: one checkpoint directory in, one compressed and proven checkpoint directory out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from goldstick.calibration.memory_budget import default_budget, peak_memory, require_memory
from goldstick.checkpoint.journal import WorkDirectory, tidy_up, training_directory, work_directory, written_before
from goldstick.checkpoint.source import SourceCheckpoint
from goldstick.checkpoint.source_files import SourceFiles
from goldstick.checkpoint.staging import check_output, refuse_overlap, staged
from goldstick.core.disk_space import require_space
from goldstick.core.error import WeightError
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.core.torch_modes import as_written
from goldstick.errors import UsageError
from goldstick.hf.example_inputs import fixed_inputs, given_inputs
from goldstick.jobs.load.importance import save_importance
from goldstick.jobs.load.load import find_device
from goldstick.jobs.plan.plan import Plan
from goldstick.jobs.proof.proof import ProofMethod
from goldstick.jobs.quantize.asked_importance import check_importance, require_importance
from goldstick.jobs.quantize.by_blocks import prepare
from goldstick.jobs.quantize.gather import gathered
from goldstick.jobs.quantize.run_identity import finished_report, run_identity
from goldstick.jobs.quantize.together import agree, idle_ranks
from goldstick.jobs.quantize.write import (
    Calibrate,
    WriteResult,
    in_memory,
    write_streamed,
    write_whole,
)
from goldstick.jobs.save.finish import Content, add_accuracy, prove_and_record, write_rest
from goldstick.jobs.save.pieces import error_sums
from goldstick.jobs.save.records import environment, layer_records, shapes_of
from goldstick.jobs.save.structure import structure_of_source
from goldstick.report import Report, SizeSummary
from goldstick.report.heat_map import drawable
from goldstick.report.page import write_page
from goldstick.report.search_page import write_search_page


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """A finished checkpoint.

    Attributes:
        directory: Where it lies.
        report: What was done; also in ``report.json`` there.
        finished_before: Whether an earlier run had made it, and this one was only to go on with that.
    """

    directory: Path
    report: Report
    finished_before: bool = False


@as_written()
def execute(
    plan: Plan,
    output: Path,
    *,
    base_model: str,
    overwrite: bool = False,
    device: str = "cpu",
    proof: ProofMethod = "outputs",
    resume: bool = False,
    max_memory: int | None = None,
    progress: Progress = quiet,
    calibrate: Calibrate | None = None,
    evaluate: Callable[[Path], Mapping[str, Any]] | None = None,
    importance: Path | None = None,
) -> Quantized:
    """Carry out a plan into ``output``.

    The checkpoint is written beside ``output`` and renamed at the end; a data-free plan never builds the model.

    Args:
        plan: What to do.
        output: The directory to make.
        base_model: What the card names as the base model.
        overwrite: Whether ``output`` may replace a checkpoint that goldstick wrote.
        device: Where blocks run and weights are rounded, such as ``cuda``; the proof runs there, too.
        proof: Whether the proof compares ``outputs``, computed block by block, or ``tensors`` alone.
        resume: Whether to go on with a run that was stopped, behind a block or an epoch of training. It gives the
            same bytes. Nothing is done where that run is finished.
        max_memory: Bytes that the run may use; below what all calibration batches take in a block, they run one by one,
            which takes longer and gives the same bytes. A good part of what is free where ``None``.
        progress: Told what is done.
        calibrate: Gives the data, for recipes that look at data, when the model is in memory.
        evaluate: Called with the finished checkpoint before it is moved into place; its result goes into the report.
        importance: The GGUF file in which to keep, as an importance matrix, how large the inputs of the layers were.

    Raises:
        DataError: Nothing says how to run the model, and the proof compares outputs.
        UsageError: ``max_memory`` is less than the run holds at least.
        OutputError: ``output`` exists or cannot be written.
        SourceError: A weight is not finite, or a file is damaged, or was changed by somebody while it was read.
        CheckpointError: The result did not pass its proof.
    """
    if proof == "tensors" and not plan.streams:
        reason = "its stages look at data." if plan.by_blocks else plan.warnings[-1]  # that of the whole in memory
        reason = "a rotation changes what its tensors hold." if plan.rotation is not None else reason
        raise UsageError(f"This model cannot be proven tensor by tensor: {reason} Use --proof outputs.")
    if proof == "outputs":
        fixed_inputs(plan.network.model)  # where nothing says what they are, that is said before hours have passed
    if importance is not None:
        check_importance(plan, importance, overwrite=overwrite or resume)
    target = find_device(device)
    refuse_overlap(output, {"source": plan.source.directory})
    require_memory(max_memory, plan.least_memory)
    check_output(output, overwrite, resume)
    if not resume:
        require_space(output, plan.bytes_after)
    elif overwrite or not output.exists():  # else that run is finished
        require_space(output, plan.bytes_after, held=written_before(output))
    started = time.perf_counter()
    files = SourceFiles(plan.source.files_read, plan.source.states)
    budget = default_budget() if max_memory is None else max_memory
    trains, epochs = plan.resolution.trains, plan.resolution.has_epochs
    ranks = Ranks(device=target) if trains else Ranks.joined(target)
    hashed = not plan.streams or resume  # streaming hashes what it reads
    hashes = files.hashes(progress) if hashed and ranks.alone else {}
    saved_as = "" if importance is None else importance.name
    blockwise = prepare(plan, target, calibrate, budget, progress, ranks, saved_as)
    if not ranks.alone:
        if blockwise is None and not plan.streams:
            raise idle_ranks()
        agree(ranks, plan, blockwise.data if blockwise else None)
        hashes = files.hashes(progress, ranks) if ranks.of(hashed) else {}
    whole = None
    if blockwise is None and not plan.streams:
        require_memory(max_memory, plan.whole_memory)
        whole = in_memory(plan, target, calibrate, training_directory(output) if epochs else None)
        files.require_unchanged()
    looked_at = blockwise or whole
    run = run_identity(plan, looked_at.data if looked_at else None, hashes, target)
    goes_on = epochs or blockwise is not None
    if resume and goes_on and tidy_up(output, run):
        ranks.of(False)
        require_importance(importance, output)
        return Quantized(directory=output, report=Report.read(output))
    if resume and not overwrite and (finished := finished_report(output, run)) is not None:
        ranks.of(False)
        require_importance(importance, output)
        return Quantized(directory=output, report=finished, finished_before=True)
    with _place(output, run if goes_on else None, resume=resume, overwrite=overwrite) as place:
        folder = place.checkpoint if isinstance(place, WorkDirectory) else place
        if blockwise is not None:
            assert isinstance(place, WorkDirectory)
            ranks.of(True)
            result = blockwise.write(place, files.require_unchanged)
        elif whole is not None:
            if isinstance(place, WorkDirectory):
                place.begin_checkpoint()
            result = write_whole(plan, folder, whole, progress, measures=importance is not None)
            whole_file = gathered(plan, folder, folder, result.hashes, progress, result.audit, saved_as)
            for name in {*result.hashes} - {*whole_file}:
                (folder / name).unlink()
            result = dataclasses.replace(result, hashes=whole_file)
        else:
            ranks.of(True)
            result = write_streamed(plan, folder, target, progress, ranks)
        files.know(result.source_hashes)
        if not ranks.alone and plan.streams:
            files.hashes(progress, ranks)
        files.require_unchanged(plan.read_late if whole is not None else None)
        if importance is not None:
            save_importance(importance, result.measured, plan.network, result.audit, replace=overwrite or resume)
        looked_at = blockwise = whole = None  # the proof is made beside this process: a model would be held twice
        write_rest(folder, _content(plan, base_model, result, files.hashes(progress)), result.hashes)
        written, peak = time.perf_counter(), peak_memory()
        progress("proving", 0, 1)
        with files.read_again():
            found = prove_and_record(
                folder, _proof_request(plan, result.errors, proof, target), result.expected, result.not_run
            )
        proven = time.perf_counter()
        progress("proving", 1, 1)
        evaluation = evaluate(folder) if evaluate else {}
        if evaluation:
            add_accuracy(folder, evaluation)
        report = Report(
            goldstick_version=environment()["goldstick"],
            model=base_model,
            recipe=plan.recipe.model_dump(mode="json"),
            format=(result.pruned or plan).format.name,
            **_account(plan, result),
            calibration=result.audit,
            structure=structure_of_source(plan),
            sensitivity=drawable(plan.recipe.sensitivity),
            search=plan.recipe.search,
            **result.account,
            evaluation=evaluation,
            proof={key: value for key, value in found.items() if key != "observed"},
            warnings=(*(one for one in plan.warnings if one not in plan.unforeseen), *result.warnings),
            timing={"quantize_and_write": written - started, "prove": proven - written},
            peak_memory=peak,
            ranks=result.ranks,
            environment=environment(),
            run=run if hashes else run_identity(plan, None, files.hashes(), target),
        )
        report.write(folder)
        write_page(folder)
        write_search_page(folder, report.search)
    return Quantized(directory=output, report=report)


def _place(
    output: Path, run: Mapping[str, str] | None, *, resume: bool, overwrite: bool
) -> AbstractContextManager[Path | WorkDirectory]:
    """Where the checkpoint grows: a directory that vanishes on an error, or one that ``run`` can go on in."""
    if run is None:
        return staged(output, overwrite)
    return work_directory(output, run, resume=resume, overwrite=overwrite)


def _proof_request(
    plan: Plan, errors: Mapping[str, WeightError], proof: ProofMethod, device: torch.device
) -> dict[str, Any]:
    return {
        "device": str(device),
        "method": proof,
        "source": str(plan.source.directory),
        "recipe": plan.recipe.model_dump(mode="json"),
        "errors": {name: {"noise": error.noise} for name, error in errors.items()},
        "fallback": {"method": "tensors" if plan.streams else "files"},
    }


def _content(plan: Plan, base_model: str, result: WriteResult, hashes: Mapping[str, str]) -> Content:
    pruned = result.pruned
    resolution = (pruned or plan).resolution
    return Content(
        config=pruned.config if pruned else plan.source.config,
        sidecars=plan.source.sidecars,
        format=(pruned or plan).format,
        layers=result.layers,
        ignored=pruned.ignored if pruned else plan.float_modules,
        ties=resolution.ties,
        untied=resolution.untied,
        recipe=plan.recipe,
        source=source_record(plan.source, hashes),
        base_model=base_model,
        errors=error_sums(result.errors),
        kv=result.kv,
        described_in=plan.source.directory,
        inputs=given_inputs(plan.network.model),
        unused=[tensor.name for tensor in plan.unused],
    )


def source_record(source: SourceCheckpoint, hashes: Mapping[str, str]) -> dict[str, Any]:
    """What the manifest says of the source: its name, the sha256 of its weight files, and how they were quantized."""
    record: dict[str, Any] = {
        "name": source.directory.name,
        "files": {file.name: hashes[file.name] for file in source.files},
    }
    return record | ({"quantized_as": source.quantized_as} if source.quantized_as else {})


def _account(plan: Plan, result: WriteResult) -> dict[str, Any]:
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    for tensor in plan.tensors:
        if tensor.parameter:
            after[tensor.parameter] = after.get(tensor.parameter, 0) + tensor.bytes_after
            if tensor.source.name == tensor.name:
                before[tensor.parameter] = before.get(tensor.parameter, 0) + tensor.source.stored_nbytes
    shapes = dict(shapes_of(plan.network))
    for tensor in plan.tensors:  # the model on the meta device does not know the dtypes of the files
        if tensor.parameter in shapes:
            shapes[tensor.parameter] = shapes[tensor.parameter][0], tensor.source.dtype
    pruned = result.pruned
    layers = layer_records(
        (pruned or plan).network,
        shapes,
        (pruned or plan).resolution,
        result.errors,
        before,
        pruned.bytes_after if pruned else after,
        result.notes,
        cut=pruned is not None,
    )
    return {"layers": layers, "size": SizeSummary.of(layers)}
