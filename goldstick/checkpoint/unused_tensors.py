"""Tensors that a checkpoint carries on though its model has no use for them, as its manifest names them."""

from __future__ import annotations

from pathlib import Path

from goldstick.checkpoint.source import read_json
from goldstick.errors import CheckpointError

MANIFEST_NAME = "goldstick.json"


def unused_tensors(directory: Path) -> tuple[str, ...]:
    """The tensors of a checkpoint that transformers would pass over; none where goldstick did not make it.

    Raises:
        CheckpointError: The manifest names something else.
    """
    if not (directory / MANIFEST_NAME).is_file():
        return ()
    names = read_json(directory / MANIFEST_NAME, "no checkpoint").get("unused", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(
            f"{directory / MANIFEST_NAME} names no list of 'unused' tensors. Copy the checkpoint again."
        )
    return tuple(names)
