"""Files: weights that lie there twice, or that nobody reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from goldstick.checkpoint.file_state import file_sha256
from goldstick.checkpoint.source import (
    INDEX_NAME,
    PICKLES,
    SINGLE_NAME,
    named_by_autogptq,
    overlooked_config,
    read_json,
)
from goldstick.errors import GoldstickError
from goldstick.jobs.doctor.finding import Finding

#: What to do where a config lies beside config.json.
INTO_CONFIG = (
    "write its table into config.json as 'quantization_config', or export the checkpoint anew ('goldstick export')"
)


def file_findings(directory: Path) -> Iterator[Finding]:
    """Weight files that are equal, or that the index does not name."""
    files = sorted(path for path in directory.iterdir() if path.suffix == ".safetensors" and path.is_file())
    yield from _equal(files)
    used = _used(directory)
    single, index = ((directory / name).is_file() for name in (SINGLE_NAME, INDEX_NAME))
    if single and index and _named(directory) != {SINGLE_NAME}:
        yield Finding(
            severity="fault",
            check="index",
            what=f"an index of other files beside {SINGLE_NAME}: transformers and goldstick read that one file, others "
            "what the index names",
            where=(INDEX_NAME,),
            remedy="remove the index, which an earlier save may have left, or the file, whichever is not meant",
        )
    if used is not None and (left := [path.name for path in files if path.name not in used]):
        yield Finding(
            severity="remark",
            check="unused-files",
            what=f"weight files that {next(iter(used)) if single or not index else INDEX_NAME} leaves out",
            where=tuple(left),
            remedy="remove them; some readers load every *.safetensors in a directory",
        )
    if used is not None and (odd := used - {SINGLE_NAME}) and not index:
        yield Finding(
            severity="remark",
            check="file-name",
            what="a weight file has the name that AutoGPTQ gave it, by which transformers does not find it",
            where=tuple(odd),
            remedy=f"rename it {SINGLE_NAME}",
        )
    if (beside := _overlooked(directory)) is not None:
        yield Finding(
            severity="remark",
            check="config-beside",
            what="how weights are quantized stands beside config.json, where transformers does not look: it fills "
            "quantized layers at random. goldstick reads it",
            where=(beside,),
            remedy=INTO_CONFIG,
        )
    pickles = sorted(path.name for path in directory.iterdir() if path.suffix in PICKLES)
    if pickles and files:
        yield Finding(
            severity="remark",
            check="pickles",
            what="pickles beside the weights, which run code when they are opened",
            where=tuple(pickles),
            remedy="remove them; goldstick never opens them",
        )


def _equal(files: list[Path]) -> Iterator[Finding]:
    """Files of the same bytes; only those of one size are read."""
    by_size: dict[int, list[Path]] = {}
    for path in files:
        by_size.setdefault(path.stat().st_size, []).append(path)
    for alike in by_size.values():
        by_hash: dict[str, list[str]] = {}
        for path in alike if len(alike) > 1 else []:
            by_hash.setdefault(file_sha256(path), []).append(path.name)
        for names in by_hash.values():
            if len(names) > 1:
                yield Finding(
                    severity="fault",
                    check="equal-files",
                    what="weight files hold the same bytes: one was copied over another, or lies there twice",
                    where=(" = ".join(names),),
                    remedy="fetch the one that is wrong again, or remove it",
                )


def _used(directory: Path) -> set[Any] | None:
    """The files that the weights are read from, or ``None`` where nothing sensible says so."""
    if (directory / SINGLE_NAME).is_file():
        return {SINGLE_NAME}
    if (directory / INDEX_NAME).is_file():
        return _named(directory)
    try:
        name = named_by_autogptq(directory)
    except GoldstickError:
        return None
    return {name} if name is not None else None


def _overlooked(directory: Path) -> str | None:
    try:
        return overlooked_config(directory)
    except GoldstickError:
        return None


def _named(directory: Path) -> set[Any] | None:
    """The files that the index names, or ``None`` where it makes no sense."""
    try:
        weight_map = read_json(directory / INDEX_NAME, "missing").get("weight_map")
    except GoldstickError:
        return None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        return None
    return set(weight_map.values())
