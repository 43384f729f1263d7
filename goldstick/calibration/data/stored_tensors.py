"""Tensors saved in a file: each is an argument of a model's forward, its first dimension the samples."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from goldstick.errors import DataError


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` or ``.npz`` file, by their names.

    Raises:
        DataError: The file cannot be read, or its tensors are not of one number of samples.
    """
    try:
        found = load_file(path) if path.suffix.lower() == ".safetensors" else _arrays(path)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: cannot be read as {path.suffix} ({reason}); save the tensors again") from error
    if not found:
        raise DataError(f"{path}: it holds no tensors; save one for each argument of the model's forward")
    shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in list(found.items())[:5])
    if any(not value.ndim for value in found.values()) or len({len(value) for value in found.values()}) > 1:
        raise DataError(f"{path}: the first dimension is the samples, of equal number in all tensors, not {shapes}")
    return found


def _arrays(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as file:
        return {name: torch.from_numpy(np.ascontiguousarray(file[name])) for name in file.files}
