"""Export: a quantized checkpoint in another storage format, layer by layer, every code and scale as it was."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from goldstick.checkpoint.entries import Entry
from goldstick.checkpoint.file_state import states_in
from goldstick.checkpoint.gguf.directory import missing_tokenizer
from goldstick.checkpoint.gguf.entries import GgufLayout, gguf_layout, write_gguf
from goldstick.checkpoint.kv_cache import KV_SCALES
from goldstick.checkpoint.shards import write_entries
from goldstick.checkpoint.sidecars import sidecars_of
from goldstick.checkpoint.source import read_json
from goldstick.checkpoint.source_files import SourceFiles
from goldstick.checkpoint.staging import check_output, refuse_overlap, staged
from goldstick.checkpoint.unused_tensors import MANIFEST_NAME
from goldstick.core.agreement import require_same, sizes_of
from goldstick.core.disk_space import require_space
from goldstick.core.processes import told_by_first
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.core.torch_modes import as_written
from goldstick.errors import DataError, NotRunError
from goldstick.formats.base import StoredLayer
from goldstick.formats.input_scale import part_name, unpack_multiplier
from goldstick.hf.checkpoint import QuantizedCheckpoint, open_quantized
from goldstick.hf.example_inputs import inputs_beside
from goldstick.hf.float_matrices import float_matrices
from goldstick.jobs.export.export_plan import ExportPlan, plan_export
from goldstick.jobs.export.exported import compare_layers, same_copies
from goldstick.jobs.inspect.inspect import table_of
from goldstick.jobs.inspect.stored_report import bytes_by_parameter, report_of_files
from goldstick.jobs.load.front_matter import card_remarks, front_matter
from goldstick.jobs.plan.choose_format import STORED_NATIVE, loader_remarks
from goldstick.jobs.proof.observation import Observation
from goldstick.jobs.proof.observe_streamed import observe_checkpoint
from goldstick.jobs.proof.proof import ProofMethod
from goldstick.jobs.quantize.quantize import Quantized
from goldstick.jobs.save.finish import Content, prove_and_record, record_proof, write_rest
from goldstick.jobs.save.records import environment
from goldstick.recipes import Recipe
from goldstick.report import Report, SizeSummary

#: Bytes of layers that are divided over ranks at a time, for each of them.
_WINDOW = 1 << 28


@as_written()
def export_checkpoint(
    directory: Path,
    format_name: str,
    output: Path,
    *,
    overwrite: bool = False,
    proof: ProofMethod = "outputs",
    max_shard_size: int | None = None,
    together: bool = True,
    progress: Progress = quiet,
) -> Quantized:
    """Store a quantized checkpoint in another format; one layer is in memory at a time.

    Several processes convert layers ``together``; the first writes, and the others get its report. Every layer is read
    back and compared with the source bit by bit, and every other tensor with its copy; then a fresh process compares
    what both checkpoints give, unless ``proof`` is ``tensors``.

    Raises:
        OutputError: ``output`` exists or cannot be written.
        CheckpointError: The result is not what it should be.
        FormatError: See :func:`plan_export`, which comes first.
    """
    ranks = Ranks.joined() if together else Ranks()
    if ranks.first:
        refuse_overlap(output, {"source": directory})
        check_output(output, overwrite)
    started = time.perf_counter()
    carried = sidecars_of(directory)
    states = states_in(directory, carried.values())
    plan = plan_export(directory, format_name)
    require_same(ranks, {"checkpoint": sizes_of(directory), "format": format_name})
    weights = sorted({info.file for info in plan.checkpoint.stored.tensors.values()})
    files = SourceFiles({**{file.name: file for file in weights}, **carried}, states)
    hashes = files.hashes(progress, ranks)
    whole = list(_entries(plan))
    converted = {layer.name for layer in plan.checkpoint.stored.layers}
    # What is copied takes less than to hand it over.
    costs = [entry.nbytes if entry.name in converted else 0 for entry in whole]
    made_of = ranks.in_order(costs, lambda number: whole[number].produce(), _WINDOW)
    if not ranks.first:
        for _ in made_of:
            pass
        return Quantized(directory=output, report=Report.from_json(told_by_first("")))
    entries = [dataclasses.replace(entry, produce=partial(next, made_of)) for entry in whole]
    content = _content(plan, {file.name: hashes[file.name] for file in weights})
    layout = _layout(plan, entries, content.base_model)
    require_space(output, sum(entry.nbytes for entry in entries))
    with staged(output, overwrite) as work:
        if layout is not None:
            hashes = write_gguf(work, entries, layout, progress, max_shard_size)
        else:
            hashes = write_entries(work, entries, max_shard_size, progress)
        write_rest(work, content, hashes)
        written = time.perf_counter()
        progress("proving", 0, 1)
        made = open_quantized(work)
        with files.read_again():
            found = compare_layers(plan.checkpoint.stored, made.stored)
            found |= {"tensors_copied": same_copies(plan.checkpoint.stored, made.stored)}
            expected, why = _observed(directory) if proof == "outputs" else (None, "")
            if expected is not None and not _regrouped(plan, made):
                found = prove_and_record(work, {"method": "outputs"}, expected)
            else:
                found |= {"not_run": why} if why else {}
                record_proof(work, found)
        files.require_unchanged()
        progress("proving", 1, 1)
        report = _report(plan, made, found, content.base_model)
        timing = {"export_and_write": written - started, "prove": time.perf_counter() - written}
        notes = (*(note for note in (missing_tokenizer(directory),) if note), *card_remarks(directory))
        report = dataclasses.replace(report, timing=timing, warnings=(*_told(plan, report.warnings), *notes))
        report.write(work)
    if not ranks.alone:
        told_by_first(report.to_json())
    return Quantized(directory=output, report=report)


def _told(plan: ExportPlan, before: Sequence[str]) -> list[str]:
    """What the user should know of the result: without what is true of the source's format alone, and with its own."""
    stored, model = plan.checkpoint.stored, plan.checkpoint.network.model
    old, new = (
        [*storage.remarks(stored.layers), *loader_remarks(storage, stored.layers, model)]
        for storage in (stored.format, plan.format)
    )
    return [*new, *(one for one in before if one not in (*old, *new) and not one.startswith(STORED_NATIVE))]


def _observed(directory: Path) -> tuple[Observation | None, str]:
    """What a checkpoint gives, or why it does not run: then its equal layers are the proof."""
    try:
        return observe_checkpoint(directory), ""
    except (NotRunError, DataError) as error:
        return None, str(error)


def _regrouped(plan: ExportPlan, made: QuantizedCheckpoint) -> bool:
    """Whether groups became smaller: their sums are rounded elsewhere, and equal weights give other last bits."""
    schemes = {layer.name: layer.scheme for layer in made.stored.layers}
    return any(schemes[layer.name] != layer.scheme for layer in plan.checkpoint.stored.layers)


def _layout(plan: ExportPlan, entries: Sequence[Entry], base_model: str) -> GgufLayout | None:
    if not plan.format.in_gguf:
        return None
    model: Any = plan.checkpoint.network.model
    outputs = {name: spec for entry in entries for name, spec in entry.outputs.items()}
    directory = plan.checkpoint.directory
    card, _ = front_matter(directory / "README.md")
    return gguf_layout(outputs, model.config.to_dict(), directory, Path(base_model).name, card)


def _entries(plan: ExportPlan) -> Iterator[Entry]:
    stored = plan.checkpoint.stored
    owners = {part_name(layer.name, suffix): layer for layer in stored.layers for suffix in stored.parts(layer)}
    done: set[str] = set()
    for name, info in stored.tensors.items():
        layer = owners.get(name)
        if layer is None:
            if plan.kv is None or not name.endswith(KV_SCALES):
                yield Entry(
                    name=name, outputs={name: (info.shape, info.dtype)}, produce=partial(_copied, name, info.read)
                )
        elif layer.name not in done:
            done.add(layer.name)
            specs = plan.format.specs(layer, plan.scales_of(layer))
            outputs = {part_name(layer.name, suffix): spec for suffix, spec in specs.items()}
            yield Entry(name=layer.name, outputs=outputs, produce=partial(_converted, plan, layer))
    for name, tensor in (plan.kv.tensors if plan.kv else {}).items():
        yield Entry(name=name, outputs={name: (tensor.shape, tensor.dtype)}, produce=partial(dict, {name: tensor}))


def _copied(name: str, read: Callable[[], Tensor]) -> dict[str, Tensor]:
    return {name: read()}


def _converted(plan: ExportPlan, layer: StoredLayer) -> dict[str, Tensor]:
    stored, parts = plan.checkpoint.stored, plan.checkpoint.stored.read(layer)
    tensor = stored.unpack(layer, parts)
    tensor = dataclasses.replace(tensor, scale=tensor.scale.to(plan.scales_of(layer)))
    inputs = (
        *stored.format.unpack_input(parts, layer.scheme, layer.name),
        unpack_multiplier(parts, layer.multiplied, layer.name),
    )
    packed = plan.format.pack(tensor, layer.scheme, *inputs)
    return {part_name(layer.name, suffix): part for suffix, part in packed.items()}


def _content(plan: ExportPlan, hashes: Mapping[str, str]) -> Content:
    directory, stored = plan.checkpoint.directory, plan.checkpoint.stored
    manifest: Mapping[str, Any] = {}
    if (directory / MANIFEST_NAME).is_file():
        manifest = read_json(directory / MANIFEST_NAME, "no checkpoint")
    recipe, source, entries = (table_of(directory, manifest, key) for key in ("recipe", "source", "layers"))
    return Content(
        config={key: value for key, value in plan.checkpoint.config.items() if key != "quantization_config"},
        sidecars=sidecars_of(directory),
        format=plan.format,
        layers=stored.layers,
        ignored=_ignored(plan.checkpoint),
        ties=plan.checkpoint.ties,
        untied=False,
        recipe=Recipe.load(recipe) if recipe else None,
        source=source,
        base_model=Report.read(directory).model if manifest else directory.name,
        errors={
            site: {key: value for key, value in table_of(directory, entries, site).items() if key != "scheme"}
            for site in entries
        },
        kv=plan.kv,
        described_in=directory,
        inputs=inputs_beside(directory),
        unused=plan.checkpoint.unused,
        exported_from={"format": stored.format.name, "files": hashes},
    )


def _ignored(checkpoint: QuantizedCheckpoint) -> list[str]:
    stored = checkpoint.stored
    names = {name: checkpoint.names.piece(name).parameter for name in stored.tensors}
    codes = {layer.name for layer in stored.layers}
    matrices = {
        name: names[name] for name, info in stored.tensors.items() if len(info.shape) == 2 and name not in codes
    }
    return float_matrices(checkpoint.network, matrices, {layer.site for layer in stored.layers}, names.values())


def _report(plan: ExportPlan, made: QuantizedCheckpoint, proof: Mapping[str, Any], base_model: str) -> Report:
    """The source's report, or one from its headers, with the sizes and the proof of the export."""
    directory = plan.checkpoint.directory
    mine = (directory / MANIFEST_NAME).is_file()
    before = Report.read(directory) if mine else report_of_files(plan.checkpoint)
    after = bytes_by_parameter(made, {name: info.nbytes for name, info in made.stored.tensors.items()})
    layers = tuple(dataclasses.replace(record, bytes_after=after.get(record.name, 0)) for record in before.layers)
    return dataclasses.replace(
        before,
        goldstick_version=environment()["goldstick"],
        model=base_model,
        format=plan.format.name,
        layers=layers,
        size=SizeSummary.of(layers),
        proof={key: value for key, value in proof.items() if key != "observed"},
        environment=environment(),
    )
