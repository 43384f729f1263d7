"""The proof for models that do not run: what lies on disk is what was written, and every layer of it can be read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from goldstick.checkpoint.file_state import file_sha256
from goldstick.errors import FormatError
from goldstick.hf.checkpoint import open_quantized


def compare_files(directory: Path, files: Mapping[str, str]) -> dict[str, Any]:
    """Hash every file anew and unpack every quantized layer, whose numbers must be finite.

    Args:
        directory: The checkpoint.
        files: Name → sha256 of what was written, taken from memory on the way to the disk.
    """
    wrong = [name for name, digest in files.items() if file_sha256(directory / name) != digest]
    stored = open_quantized(directory).stored
    for layer in stored.layers:
        try:
            numbers = stored.unpack(layer).dequantize()
        except FormatError:
            wrong.append(layer.site)
            continue
        if not bool(torch.isfinite(numbers).all()):
            wrong.append(layer.site)
    return {
        "method": "files",
        "files": len(files),
        "tensors_quantized": len(stored.layers),
        "wrong": wrong[:5],
        "passed": not wrong,
    }
