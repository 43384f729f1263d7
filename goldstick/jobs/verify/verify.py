"""Verify: the hashes of a checkpoint's files, and its proof once more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goldstick.checkpoint.file_state import file_sha256
from goldstick.checkpoint.gguf.directory import checkpoint_directory, made_by_another_tool
from goldstick.checkpoint.sidecars import is_inside
from goldstick.checkpoint.source import INDEX_NAME, refuse_links_out, require_model
from goldstick.checkpoint.unused_tensors import MANIFEST_NAME
from goldstick.core.counts import counted
from goldstick.errors import CheckpointError, FormatError
from goldstick.jobs.inspect.inspect import made_elsewhere, read_manifest
from goldstick.jobs.proof.proof import TOLERANCE, prove

#: Implementations of attention that a proof may have used; transformers takes other names for hub repositories.
_ATTENTIONS = (None, "eager", "sdpa", "flash_attention_2", "flex_attention")


def verify_checkpoint(directory: Path) -> dict[str, Any]:
    """Hash every file of a checkpoint and run its proof again in a fresh process.

    A checkpoint of another tool records neither; every layer of it is read and must be what its
    config declares.

    Returns:
        ``files``: how many were hashed, ``proof``: the finding in words, ``passed``: true.

    Raises:
        SourceError: There is no such directory.
        CheckpointError: A file is missing, changed or a stranger, or the model gives other outputs than it did.
    """
    require_model(directory, local=True)
    if made_by_another_tool(directory):
        with checkpoint_directory(directory) as made:
            return verify_checkpoint(made)
    if made_elsewhere(directory):
        return {"files": 0, "proof": _read_through(directory), "passed": True}
    manifest: dict[str, Any] = read_manifest(directory)
    files = manifest.get("files")
    if not isinstance(files, Mapping) or not files:
        raise CheckpointError(f"The manifest of {directory} names no files. Copy the checkpoint again.")
    for name, expected in files.items():
        path = directory / name
        if not is_inside(name):
            raise CheckpointError(f"The manifest of {directory} names {name[:100]!r}, which is no file of it. Refused.")
        if not path.is_file():
            raise CheckpointError(f"{name} is missing from {directory}. Copy the checkpoint again.")
        refuse_links_out(path, directory)
        if file_sha256(path) != expected:
            raise CheckpointError(
                f"{name} in {directory} has changed since it was written: its sha256 is not the one in goldstick.json. "
                "Copy "
                "the checkpoint again; if you meant to change the file, the checkpoint is no longer the proven one."
            )
    _refuse_strangers(directory, files)
    return {"files": len(files), "proof": _prove_again(directory, manifest.get("proof")), "passed": True}


def _refuse_strangers(directory: Path, files: Mapping[str, Any]) -> None:
    """Refuse weight files that the manifest does not name: readers may load them instead of those that were proven.

    Raises:
        CheckpointError: There is one.
    """
    weights = sorted(path.name for path in directory.iterdir() if path.suffix in (".safetensors", ".gguf"))
    strangers = [name for name in (*weights, INDEX_NAME) if name not in files and (directory / name).exists()]
    if strangers:
        raise CheckpointError(
            f"{strangers[0]} lies in {directory}, and the manifest does not name it: it came after the proof, and "
            "readers may load it instead of what was proven. Remove it, or copy the checkpoint again."
        )


def _read_through(directory: Path) -> str:
    from goldstick.hf.checkpoint import open_quantized

    stored = open_quantized(directory).stored
    for layer in stored.layers:
        try:
            stored.unpack(layer)
        except FormatError as error:
            raise CheckpointError(str(error)) from error
    return (
        f"made by another tool, so that no hashes and no proof are recorded; what the config declares is what is "
        f"stored: {counted(len(stored.layers), 'quantized layer')}"
    )


def _observed(directory: Path, recorded: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a recorded proof saw, or ``None`` where it compared no outputs.

    Raises:
        CheckpointError: The record is not one that goldstick writes.
    """
    observed = recorded.get("observed")
    if isinstance(recorded.get("method"), str) and recorded["method"] != "outputs":
        return None
    samples = observed.get("samples") if isinstance(observed, Mapping) else None
    whole = isinstance(samples, list) and samples and all(type(value) in (int, float) for value in samples)
    known = recorded.get("attention") in _ATTENTIONS and isinstance(recorded.get("buffers") or {}, Mapping)
    if not (whole and known and isinstance(observed, Mapping) and type(observed.get("numel")) is int):
        raise CheckpointError(
            f"The proof recorded in {directory / MANIFEST_NAME} is not one that goldstick writes. Copy the checkpoint "
            "again."
        )
    return observed


def _prove_again(directory: Path, recorded: Mapping[str, Any] | None) -> str:
    if not isinstance(recorded, Mapping):
        raise CheckpointError(f"The manifest of {directory} holds no proof: its making was cut short.")
    before = _observed(directory, recorded)
    if before is None:
        return f"recorded proof by {recorded['method']}; equal hashes carry it over"
    settings = {name: recorded.get(name) for name in ("attention", "buffers")}
    settings["inputs"] = before.get("inputs", {})
    found = prove(directory, {**settings, "method": "observe"}, None)["observed"]
    if found["sha256"] == before.get("sha256"):
        return f"outputs are equal to the bit to those recorded ({found['numel']:,} values)"
    largest = max(abs(value) for value in before["samples"])
    difference = max(abs(a - b) for a, b in zip(before["samples"], found["samples"], strict=False))
    alike = found["numel"] == before["numel"] and len(found["samples"]) == len(before["samples"])
    # Another machine or another number of threads rounds differently in the last bits.
    if not alike or difference > 100 * TOLERANCE * largest:
        raise CheckpointError(
            f"{directory} gives other outputs than when it was proven: {difference:.3g} apart where outputs reach "
            f"{largest:.3g}. "
            "The libraries in use may be at fault; compare 'environment' in goldstick.json."
        )
    return f"outputs are equal to those recorded up to rounding (largest difference {difference:.3g})"
