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
from goldstick.jobs.doctor.finding import Diagnosis, Finding, gathered
from goldstick.jobs.doctor.floats import float_findings
from goldstick.jobs.doctor.fused_scales import fused_scale_findings
from goldstick.jobs.doctor.layer import layer_findings
from goldstick.jobs.doctor.splits import split_findings
from goldstick.jobs.doctor.tensors import tensor_findings
from goldstick.jobs.doctor.ties import tie_findings


def examine(directory: Path, progress: Progress = quiet, source: Path | None = None) -> Diagnosis:
    """Look for everything that is wrong with a checkpoint, quantized by any tool, or in float.

    Args:
        directory: The checkpoint of a transformers model, or a GGUF file.
        progress: Called with (description, done, total).
        source: The model that it was made from, where its weights are to be compared with that one's.

    Raises:
        SourceError: There is no such directory, or it holds no config.json and no GGUF file.
    """
    if made_by_another_tool(directory):
        try:
            with checkpoint_directory(directory) as made:
                return dataclasses.replace(examine(made, progress, source), directory=str(directory))
        except GoldstickError as error:
            return _diagnosis(directory, "unknown", 0, 0, [_unreadable(error)])
    if not (directory / "config.json").is_file():
        raise SourceError(
            f"{directory} holds no config.json, so it is no checkpoint of a transformers model. Of other modules, "
            "'goldstick verify' checks the hashes and the proof."
        )
    findings = list(file_findings(directory))
    try:
        examined = open_examined(directory)
    except GoldstickError as error:
        return _diagnosis(directory, "unknown", 0, 0, [*findings, _unreadable(error)])
    findings += examined.contradictions
    for check in (tensor_findings, declared_findings, tie_findings, split_findings, fused_scale_findings):
        findings += check(examined)
    findings += _numbers(examined, progress)
    if source is not None:
        findings += source_findings(examined, source, progress)
    form = examined.stored.format.name if examined.stored else "float"
    return _diagnosis(directory, form, len(examined.layers), len(examined.tensors), findings)


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


def _diagnosis(directory: Path, form: str, layers: int, tensors: int, findings: list[Finding]) -> Diagnosis:
    return Diagnosis(directory=str(directory), format=form, layers=layers, tensors=tensors, findings=gathered(findings))
