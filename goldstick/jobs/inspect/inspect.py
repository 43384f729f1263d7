"""Inspect: what a compressed checkpoint holds, by its report and by its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from goldstick.checkpoint.gguf.directory import checkpoint_directory, made_by_another_tool
from goldstick.checkpoint.source import open_tensors, read_config, read_json, require_model
from goldstick.checkpoint.unused_tensors import MANIFEST_NAME
from goldstick.core.scheme import Scheme
from goldstick.errors import CheckpointError, DataError, UsageError
from goldstick.formats import FORMATS
from goldstick.formats.native import NATIVE
from goldstick.report import LayerRecord, Report
from goldstick.report.file_names import FILE_NAME


def read_report(directory: Path) -> Report:
    """The report of a checkpoint, after a check that the files hold what it says.

    A checkpoint of another tool brings none; its report is what its config and headers say.

    Raises:
        CheckpointError: It is no checkpoint of goldstick, or the sizes of files and report differ.
        SourceError: The directory or a file of it is missing, or damaged.
    """
    require_model(directory, local=True)
    if made_by_another_tool(directory):
        with checkpoint_directory(directory) as made:
            return read_report(made)
    if made_elsewhere(directory):
        from goldstick.hf.checkpoint import open_quantized
        from goldstick.jobs.inspect.stored_report import report_of_files

        return report_of_files(open_quantized(directory))
    read_manifest(directory)
    try:
        report = Report.read(directory)
    except DataError as error:
        raise CheckpointError(f"The report of {directory} cannot be read: {error}") from error
    for layer in report.layers:
        _require_known(layer, directory)
    stored = sum(info.nbytes for info in open_tensors(directory).values())
    if stored < report.size.bytes_after:
        raise CheckpointError(
            f"The files of {directory} hold {stored:,} bytes of tensors and its report promises "
            f"{report.size.bytes_after:,}; "
            "'goldstick verify' says which file changed."
        )
    return report


def _require_known(layer: LayerRecord, directory: Path) -> None:
    if layer.scheme is None:
        return
    try:
        Scheme.of_label(layer.scheme)
        known = isinstance(getattr(torch, layer.dtype, None), torch.dtype)
    except UsageError:
        known = False
    if not known:
        raise CheckpointError(
            f"The report of {directory} says that {layer.name} was of {layer.dtype[:40]!r} and became "
            f"{layer.scheme[:40]!r}, of which one is nothing that goldstick knows. Copy the checkpoint again."
        )


def made_elsewhere(directory: Path) -> bool:
    """Whether a directory is a checkpoint of a public format that goldstick did not make, or not finish."""
    if (directory / MANIFEST_NAME).is_file() or not (directory / "config.json").is_file():
        return False
    table = read_config(directory).get("quantization_config")
    method = table.get("quant_method") if isinstance(table, dict) else None
    # goldstick's own checkpoint that has lost its manifest is known by the report.
    own = method == NATIVE.method or (directory / FILE_NAME).is_file()
    return method in {storage.method for storage in FORMATS.values()} and not own


def read_manifest(directory: Path) -> dict[str, object]:
    """The manifest of a checkpoint.

    Raises:
        CheckpointError: There is none.
    """
    if not (directory / MANIFEST_NAME).is_file():
        raise CheckpointError(
            f"{directory} holds no {MANIFEST_NAME}: it is no checkpoint made by goldstick, or its making was cut short."
        )
    return read_json(directory / MANIFEST_NAME, "no checkpoint")


def table_of(directory: Path, owner: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A table of a manifest, or of a table of it; empty where there is none.

    Raises:
        CheckpointError: Something else stands there.
    """
    found = owner.get(key) or {}
    if not isinstance(found, Mapping):
        raise CheckpointError(
            f"{directory / MANIFEST_NAME} is not one that goldstick writes: {key!r} is no table. Copy the checkpoint "
            "again."
        )
    return found
