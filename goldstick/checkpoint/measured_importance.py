"""What a run has measured of the inputs of finished blocks, a file for each, so that a stopped run goes on with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from goldstick.checkpoint.safetensors_file import SafetensorsWriter, read_header
from goldstick.checkpoint.staging import ANEW
from goldstick.core.input_squares import InputSquares
from goldstick.core.whole_file import sync_directory
from goldstick.errors import OutputError

_SUMS, _COUNTS = ".sums", ".counts"


def write_measured(folder: Path, number: int, found: Mapping[str, InputSquares]) -> None:
    """Write what was measured in a block; synced to disk.

    Args:
        folder: The run's working directory.
        number: The block.
        found: Site name → the squares of its inputs.
    """
    path = _path(folder, number)
    path.unlink(missing_ok=True)  # of a run that was cut short behind it
    tensors = {name + _SUMS: squares.sums for name, squares in found.items()}
    tensors |= {name + _COUNTS: squares.counts for name, squares in found.items()}
    with SafetensorsWriter(path, {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}) as writer:
        for name, tensor in tensors.items():
            writer.write(name, tensor)
    sync_directory(folder)


def read_measured(folder: Path, number: int) -> dict[str, InputSquares]:
    """What was measured in a block of a run that was stopped.

    Raises:
        OutputError: It measured nothing.
    """
    path = _path(folder, number)
    if not path.is_file():
        raise OutputError(f"The unfinished run in {folder} was begun without --save-importance. {ANEW}")
    found = {name: info.read() for name, info in read_header(path).items()}
    names = [name.removesuffix(_SUMS) for name in found if name.endswith(_SUMS)]
    return {name: InputSquares(sums=found[name + _SUMS], counts=found[name + _COUNTS]) for name in names}


def _path(folder: Path, number: int) -> Path:
    return folder / f"importance-{number:05d}.safetensors"
