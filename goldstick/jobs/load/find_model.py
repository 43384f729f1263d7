"""Finding models and data: a local directory, a hub id, or what comes with goldstick."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from torch import nn

from goldstick.checkpoint.gguf.directory import checkpoint_directory
from goldstick.checkpoint.source import open_tensors, read_config, require_model
from goldstick.errors import SourceError, UsageError

REFERENCE = "reference"
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def reference_directory() -> Path:
    """Where the bundled reference model lies."""
    return Path(str(resources.files("goldstick") / "reference"))


def find_model(model: str | Path) -> Path:
    """The directory of a model: the bundled ``reference``, a local directory, or a hub id (downloaded).

    Raises:
        SourceError: There is no such model, or the hub cannot be reached.
        UsageError: It is a module, and no name of one.
    """
    if isinstance(model, nn.Module):
        raise UsageError(
            f"This takes the directory of a model, and {type(model).__name__} is one in memory: goldstick.apply(model, "
            "recipe) compresses it."
        )
    if str(model) == REFERENCE:
        return reference_directory()
    path = Path(model)
    if path.exists() or not _HUB_ID.fullmatch(str(model)):
        return require_model(path)
    return _download(str(model))


def check_model(model: str | Path) -> None:
    """Look whether a model is there and its config and file headers can be read, before anything long is done.

    Raises:
        SourceError: It is not, with the file and the reason.
    """
    with checkpoint_directory(find_model(model)) as directory:
        read_config(directory, "not a model directory")
        open_tensors(directory)


def _download(name: str) -> Path:
    from huggingface_hub import constants, snapshot_download

    from goldstick.evaluation.hub import hub_answers

    alone = not constants.HF_HUB_OFFLINE and not hub_answers()
    try:
        patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "LICENSE*", "NOTICE*", "README.md"]
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=alone))
    except Exception as error:  # the hub's client raises many kinds, its HTTP library's among them
        state = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub was asked"
        state = "this machine has no way to the hub" if alone else state
        raise SourceError(
            f"{name!r} is no local directory, and as a hub id it could not be fetched ({state}): "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__} Give a local directory in the hub's "
            "layout."
        ) from error


def data_directory(data_dir: str | Path | None, model: str | Path | None) -> Path | None:
    """Where evaluation data lie: the directory given, the reference model's own for ``reference``, or nowhere."""
    if str(data_dir) == REFERENCE or (data_dir is None and str(model) == REFERENCE):
        return reference_directory() / "data"
    return Path(data_dir) if data_dir is not None else None
