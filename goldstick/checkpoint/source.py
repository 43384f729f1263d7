"""A source checkpoint: a directory in the hub's layout, looked at without reading any weight."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from goldstick.checkpoint.file_state import FileState
from goldstick.checkpoint.gguf.shards import gguf_file_in, shards_of
from goldstick.checkpoint.gguf.tensors import gguf_tensors
from goldstick.checkpoint.missing_weights import no_weights
from goldstick.checkpoint.safetensors_file import TensorInfo, read_header
from goldstick.checkpoint.strict_json import parse_object, size_limit
from goldstick.core.temporary_folder import is_in_use
from goldstick.core.utf8_paths import require_utf8
from goldstick.errors import FormatError, SourceError
from goldstick.formats.config_beside import BESIDE, OVERLOOKED
from goldstick.formats.mlx import with_one_table

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
#: The config of an adapter, as peft writes it.
ADAPTER_CONFIG = "adapter_config.json"
#: What AutoGPTQ calls the one file it writes.
_AUTOGPTQ_NAME = re.compile(r"gptq_model-\d{1,2}bit-(-1|\d{1,5})g\.safetensors")
#: Bytes that file systems give a name.
LONGEST_NAME = 255
_SHARD_NAME = re.compile(r"[A-Za-z0-9._-]+\.safetensors")
#: Suffixes of files that can run code when they are opened.
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_JSON_LIMIT = 200_000_000


@dataclass(frozen=True, kw_only=True)
class SourceCheckpoint:
    """A readable checkpoint in float.

    Attributes:
        directory: Where it lies.
        config: Its config.json.
        tensors: Every tensor by name, in file order.
        files: The weight files, in order.
        sidecars: Name → file to be carried on byte for byte.
        states: Real path → state of every file there, from before any was read.
        quantized_as: How its weights are stored where they are codes, which its tensors turn into numbers when they are
            read; empty for a float checkpoint.
    """

    directory: Path
    config: dict[str, Any]
    tensors: dict[str, TensorInfo]
    files: tuple[Path, ...]
    sidecars: Mapping[str, Path]
    states: Mapping[Path, FileState]
    quantized_as: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in their files."""
        return sum(info.stored_nbytes for info in self.tensors.values())

    @property
    def files_read(self) -> dict[str, Path]:
        """Name → every file that a checkpoint is made from: weights, config and what is carried on."""
        weights = {file.name: file for file in self.files}
        return {**weights, "config.json": self.directory / "config.json", **self.sidecars}


def require_model(path: Path, *, local: bool = False) -> Path:
    """The path of a model, a directory or a file, that is there.

    Args:
        path: The path.
        local: Whether nothing but a path may be given for it, no hub id and no name.

    Raises:
        SourceError: Nothing is there, or a file that is no GGUF file.
        UsageError: Its path is not UTF-8.
    """
    require_utf8(path)
    if not path.exists():
        raise _no_model(path, local)
    if not path.is_dir() and path.suffix != ".gguf":
        raise SourceError(
            f"{path} is a file, and a model is a directory or a .gguf file. Give the directory it lies in."
        )
    return path


def require_directory(path: Path) -> None:
    """Refuse a path at which no directory lies.

    Raises:
        SourceError: None does.
    """
    if not path.is_dir():
        raise _no_model(path)


def _no_model(path: Path, local: bool = False) -> SourceError:
    remedy = (
        "Give the directory of a checkpoint."
        if local
        else "MODEL is a local directory in the hub's layout, a hub id (owner/name), or the word 'reference'."
    )
    return SourceError(f"There is no model directory {str(path)!r}. {remedy}")


def open_tensors(directory: Path, files: Sequence[str] = ()) -> dict[str, TensorInfo]:
    """Every tensor of a checkpoint directory by name, from the headers of its files.

    Args:
        directory: The checkpoint.
        files: Names of its weight files, where others are meant than those that every reader takes.

    Raises:
        SourceError: Files are missing, damaged, named outside the directory, or only pickles are there.
    """
    index = directory / INDEX_NAME
    try:
        if files and not any(name.endswith(PICKLES) for name in files):
            return _together({name: read_header(_inside(directory, name)) for name in files})
        single = directory / SINGLE_NAME
        if single.exists():  # transformers takes it before an index, which may be left of an earlier save
            return read_header(_inside(directory, single.name))
        if index.exists():
            return _indexed(directory, index)
        named = named_by_autogptq(directory)
        if named is not None:
            return read_header(_inside(directory, named))
    except FormatError as error:
        raise SourceError(f"{error} Fetch the file again.") from error
    file = gguf_file_in(directory)
    if file is not None:
        for shard in () if is_in_use(directory.parent) else shards_of(file):  # goldstick's own links are made there
            refuse_links_out(shard)
        return gguf_tensors(file, _dtype_of_vectors(directory))
    raise SourceError(no_weights(directory, SINGLE_NAME, INDEX_NAME, PICKLES))


def named_by_autogptq(directory: Path) -> str | None:
    """The weight file of a directory that AutoGPTQ wrote and nobody renamed; ``None`` for any other.

    Raises:
        SourceError: There are several.
    """
    if (directory / INDEX_NAME).exists() or (directory / SINGLE_NAME).exists():
        return None
    found = sorted(path.name for path in directory.iterdir() if _AUTOGPTQ_NAME.fullmatch(path.name))
    if len(found) > 1:
        raise SourceError(
            f"{directory} holds several weight files ({', '.join(found[:3])}); keep the one that is meant."
        )
    return found[0] if found else None


def _dtype_of_vectors(directory: Path) -> torch.dtype:
    """What norms and biases are in the model of a directory, whose GGUF file holds them in float32."""
    config = read_json(directory / "config.json", "no checkpoint: it has no config.json")
    named = str(config.get("dtype") or config.get("torch_dtype"))
    return {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(named, torch.float32)


def _indexed(directory: Path, index: Path) -> dict[str, TensorInfo]:
    weight_map = read_json(index, "missing").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise SourceError(f"{index} has no table 'weight_map' of tensor → file.")
    shards: dict[str, dict[str, TensorInfo]] = {}
    for shard in dict.fromkeys(weight_map.values()):
        shards[shard] = read_header(_inside(directory, shard))
    tensors = _together(shards)
    for name, info in tensors.items():
        if weight_map.get(name) != info.file.name:
            raise SourceError(
                f"{info.file.name} holds the tensor {name!r}, which {index.name} places in "
                f"{weight_map.get(name, 'no file')}."
            )
    lost = sorted(set(weight_map) - set(tensors))
    if lost:
        raise SourceError(f"{index.name} places {lost[0]!r} in {weight_map[lost[0]]}, which does not hold it.")
    return tensors


def _together(shards: Mapping[str, Mapping[str, TensorInfo]]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for shard, infos in shards.items():
        for name, info in infos.items():
            if name in tensors:
                raise SourceError(f"The tensor {name!r} is stored twice: in {tensors[name].file.name} and in {shard}.")
            tensors[name] = info
    return tensors


def _inside(directory: Path, name: str) -> Path:
    path = directory / name
    if not _SHARD_NAME.fullmatch(name) or len(os.fsencode(name)) > LONGEST_NAME:
        raise SourceError(
            f"{directory}: the weight file name {name[:100]!r} is refused; a shard is a plain '*.safetensors' name in "
            "the same directory."
        )
    if not path.is_file():
        raise SourceError(f"The shard {name} is missing from {directory}; fetch it again.")
    refuse_links_out(path)
    return path


def refuse_links_out(path: Path, directory: Path | None = None) -> None:
    """Refuse a file of a checkpoint that is a link to a file elsewhere: its bytes would be carried on as the model's.

    The links of the hub's own cache, from a snapshot to its blobs, are followed.

    Args:
        path: The file.
        directory: The checkpoint, where the file lies in a folder of it.

    Raises:
        SourceError: The file is such a link.
    """
    try:
        root, real = (directory or path.parent).resolve(), path.resolve()
        beside = root / path.parent.relative_to(directory) if directory else root
    except (OSError, RuntimeError) as error:
        raise SourceError(f"{path} is a link that leads nowhere: {error}.") from error
    blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else beside
    if real.parent not in (beside, blobs):
        raise SourceError(
            f"{path} is a link out of its directory, to {real}, which is refused. Copy the file into the directory, "
            "or name the directory in which it lies."
        )


def read_config(directory: Path, when_missing: str = "no checkpoint of a transformers model") -> dict[str, Any]:
    """The config.json of a checkpoint, with the ``quantization_config`` that other tools may write beside it.

    Raises:
        SourceError: See :func:`read_json`.
    """
    config = read_json(directory / "config.json", f"{when_missing}: it has no config.json{_hint(directory)}")
    config = with_one_table(config)
    if config.get("quantization_config") is None and (found := _told_beside(directory)) is not None:
        config["quantization_config"] = found[1]
    return config


def overlooked_config(directory: Path) -> str | None:
    """The file beside config.json that says how weights are quantized and that only its writer and goldstick look for.

    Raises:
        SourceError: See :func:`read_json`.
    """
    if read_json(directory / "config.json", "no checkpoint: it has no config.json").get("quantization_config"):
        return None
    found = _told_beside(directory)
    return found[0] if found is not None and found[0] in OVERLOOKED else None


def _told_beside(directory: Path) -> tuple[str, dict[str, Any]] | None:
    """The file that says how weights are quantized in the place of config.json, and what it says."""
    for name, table_of in BESIDE.items():
        if (directory / name).is_file():
            table = table_of(read_json(directory / name, "no checkpoint"))
            if table is not None:
                return name, table
    return None


def _hint(directory: Path) -> str:
    """What a directory without a config may be meant for."""
    if (directory / ADAPTER_CONFIG).is_file():
        return ", only an adapter. Load it with its model in peft, and save what merge_and_unload gives"
    snapshots = sorted(config.parent for config in directory.glob("snapshots/*/config.json"))
    return f". Such folders of the hub's cache hold models in 'snapshots': give {snapshots[-1]}" if snapshots else ""


def read_json(path: Path, when_missing: str) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        SourceError: The file is missing, a link out of its directory, too large for what it describes, or not a JSON
            object without duplicate keys.
    """
    if not path.is_file():
        raise SourceError(f"{path.parent} is {when_missing}.")
    refuse_links_out(path)
    try:
        size = path.stat().st_size
        beside = sum(file.stat().st_size for file in path.parent.iterdir() if file.suffix == ".safetensors")
        if size > min(_JSON_LIMIT, size_limit(beside)):
            raise SourceError(f"{path} is implausibly large for a JSON file beside {beside:,} bytes of weights.")
        return parse_object(path.read_bytes(), str(path))
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from error
    except FormatError as error:
        raise SourceError(str(error)) from error
