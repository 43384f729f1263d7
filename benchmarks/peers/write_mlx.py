"""Quantize with mlx-lm: ``PYTHON write_mlx.py SPEC.json``, by the Python that has it and MLX for a CPU installed.

Beside every checkpoint lie its tokens and what MLX's own layers answer, with scales, biases and all else in float32.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm import convert, load
from safetensors.numpy import load_file, save_file

TOOLS = ("mlx", "mlx-lm", "transformers")


def main() -> None:
    """Make a checkpoint of ``model`` for each of ``cases``."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    ids = load_file(spec["ids"])["ids"]
    for name, options in spec["cases"].items():
        folder = Path(spec["output"]) / name
        convert(spec["model"], mlx_path=str(folder), quantize=True, **options)
        model, _ = load(str(folder))
        model.set_dtype(mx.float32)
        logits = np.array(model(mx.array(ids)))
        save_file(
            {"ids": ids, "logits": logits}, folder / "answer.safetensors", {tool: version(tool) for tool in TOOLS}
        )


if __name__ == "__main__":
    main()
