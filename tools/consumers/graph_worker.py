"""What onnxruntime and OpenVINO answer: ``PYTHON graph_worker.py SPEC.json``. Nothing of goldstick is imported.

For each of ``graphs``, a file of ONNX with ``inputs`` and ``outputs`` beside it as .npz, the squared error of each
runtime's outputs as a share of their sum of squares, and milliseconds for a run, the best of five; or the error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import openvino

Run = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]


def onnxruntime_of(path: str) -> Run:
    """A session of onnxruntime's."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, dict(inputs))


def openvino_of(path: str) -> Run:
    """A network compiled by OpenVINO, told to compute in float32."""
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda inputs: list(compiled(dict(inputs)).values())


def answered(make: Callable[[str], Run], path: Path) -> dict[str, Any]:
    """What one runtime gives for one file."""
    inputs, expected = dict(np.load(path.with_suffix(".inputs.npz"))), np.load(path.with_suffix(".outputs.npz"))
    try:
        run = make(str(path))
        found = run(inputs)
    except Exception as error:  # whatever a runtime raises is its answer
        return {"loads": False, "error": f"{type(error).__name__}: {error}"[:400]}
    shares = []
    for name, theirs in zip(expected.files, found, strict=True):
        exact = expected[name].astype(np.float64)
        shares.append(float(((theirs - exact) ** 2).sum() / (exact**2).sum()))
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        run(inputs)
        seconds.append(time.perf_counter() - started)
    return {"loads": True, "squared_error_share": max(shares), "milliseconds": 1000 * min(seconds)}


def main() -> None:
    """Go through the files."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    makes = {"onnxruntime": onnxruntime_of, "OpenVINO": openvino_of}
    found = {
        name: {runtime: answered(make, Path(path)) for runtime, make in makes.items()}
        for name, path in spec["graphs"].items()
    }
    versions = {"onnxruntime": version("onnxruntime"), "OpenVINO": version("openvino")}
    Path(spec["out"]).write_text(json.dumps({"graphs": found, "versions": versions}))


if __name__ == "__main__":
    main()
