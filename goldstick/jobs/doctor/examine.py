"""Examine: every check in turn, one tensor in memory at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from goldstick.checkpoint.gguf.directory import checkpoint_directory, made_by_another_tool
from goldstick.core.progress import Progress, quiet
from goldstick.errors import GoldstickError, SourceError
from goldstick.jobs.doctor.against_source import source_findings
from goldstick.jobs.doctor.declared import declared_findings
from goldstick.jobs.doctor.examined import Examined, open_examined
from goldstick.jobs.doctor.files import file_findings
from goldstick.jobs.doctor.finding import Diagnosis, Finding, Verdict, gathered
from goldstick.jobs.doctor.floats import float_findings
from goldstick.jobs.doctor.fused_scales import fused_scale_findings
from goldstick.jobs.doctor.layer import layer_findings
from goldstick.jobs.doctor.runtimes.looked_at import subject_of, subject_of_file
from goldstick.jobs.doctor.runtimes.runtime import Runtime
from goldstick.jobs.doctor.sidecars import sidecar_findings
from goldstick.jobs.doctor.splits import split_findings
from goldstick.jobs.doctor.tensors import tensor_findings
from goldstick.jobs.doctor.ties import tie_findings


def examine(
    directory: Path,
    progress: Progress = quiet,
    source: Path | None = None,
    runtime: Runtime | None = None,
    tensor_parallel: int = 1,
) -> Diagnosis:
    """Look for everything that is wrong with a checkpoint, quantized by any tool, or in float.

    Args:
        directory: The checkpoint of a transformers model, or a GGUF file.
        progress: Called with (description, done, total).
        source: The model that it was made from, where its weights are to be compared with that one's.
        runtime: A program that is to run it, whose rules are looked at, too.
        tensor_parallel: Over how many devices that is to split its layers.

    Raises:
        SourceError: There is no such directory, or it holds no config.json and no GGUF file.
    """
    if made_by_another_tool(directory):
        try:
            with checkpoint_directory(directory) as made:
                found = examine(made, progress, source, runtime, tensor_parallel)
                return dataclasses.replace(found, directory=str(directory))
        except GoldstickError as error:
            findings, verdict = _of_file(directory, runtime, tensor_parallel)
            return _diagnosis(directory, "unknown", 0, 0, [_unreadable(error), *findings], verdict)
    if not (directory / "config.json").is_file():
        raise SourceError(
            f"{directory} holds no config.json, so it is no checkpoint of a transformers model. Of other modules, "
            "'goldstick verify' checks the hashes and the proof."
        )
    findings = [*file_findings(directory), *sidecar_findings(directory)]
    try:
        examined = open_examined(directory)
    except GoldstickError as error:
        judged, verdict = _judged(directory, None, runtime, tensor_parallel)
        return _diagnosis(directory, "unknown", 0, 0, [*findings, _unreadable(error), *judged], verdict)
    findings += examined.contradictions
    for check in (tensor_findings, declared_findings, tie_findings, split_findings, fused_scale_findings):
        findings += check(examined)
    findings += _numbers(examined, progress)
    if source is not None:
        findings += source_findings(examined, source, progress)
    judged, verdict = _judged(directory, examined, runtime, tensor_parallel)
    findings += judged
    form = examined.stored.format.name if examined.stored else "float"
    return _diagnosis(directory, form, len(examined.layers), len(examined.tensors), findings, verdict)


def _judged(
    directory: Path, examined: Examined | None, runtime: Runtime | None, tensor_parallel: int
) -> tuple[list[Finding], Verdict | None]:
    """What a runtime makes of it; nothing where none was asked for."""
    if runtime is None:
        return [], None
    return runtime.judge(subject_of(directory, examined, tensor_parallel))


def _of_file(file: Path, runtime: Runtime | None, tensor_parallel: int) -> tuple[list[Finding], Verdict | None]:
    """The same of a GGUF file that goldstick does not read beyond its header."""
    if runtime is None:
        return [], None
    return runtime.judge(subject_of_file(file, tensor_parallel))


def _numbers(examined: Examined, progress: Progress) -> Iterator[Finding]:
    floats = float_names(examined)
    total = len(examined.layers) + len(floats)
    for done, layer in enumerate(examined.layers):
        progress("examining", done, total)
        yield from layer_findings(examined, layer)
    for done, name in enumerate(sorted(floats), len(examined.layers)):
        progress("examining", done, total)
        yield from float_findings(name, examined.tensors[name])
    progress("examining", total, total)


def float_names(examined: Examined) -> set[str]:
    """The floating-point tensors that belong to no quantized matrix."""
    parts = {name for layer in examined.layers for name in examined.part_names(layer)}
    return {name for name, info in examined.tensors.items() if info.dtype.is_floating_point and name not in parts}


def _unreadable(error: GoldstickError) -> Finding:
    return Finding(
        severity="fault",
        check="unreadable",
        what="it cannot be read, so that no more could be looked at",
        where=(str(error),),
        remedy="mend what is named, or fetch the checkpoint again",
    )


def _diagnosis(
    directory: Path,
    form: str,
    layers: int,
    tensors: int,
    findings: list[Finding],
    verdict: Verdict | None = None,
) -> Diagnosis:
    return Diagnosis(
        directory=str(directory),
        format=form,
        layers=layers,
        tensors=tensors,
        findings=gathered(findings),
        verdict=verdict,
    )
