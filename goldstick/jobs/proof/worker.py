"""The fresh process of a proof, given the file of a request.

The request names the checkpoint ``directory``, the ``result`` file to write, and a ``method``:

- ``outputs``: run the checkpoint block by block and compare its outputs with those in the file ``expected``, or,
  without one, with those of the float model in ``source``, each block quantized in memory by ``recipe``;
- ``observe``: only say what the checkpoint gives;
- ``files``: compare the sha256 of every file with ``files``, and read every quantized layer;
- ``stored``: compare the hash of every tensor with ``tensors``;
- ``tensors``: read source and checkpoint tensor by tensor and compare each weight's error with the recorded one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from goldstick.core.collector import end_without_collection, no_collection
from goldstick.core.freed_memory import give_large_blocks_back
from goldstick.core.fresh_process import end_with_the_parent
from goldstick.errors import GoldstickError, NotRunError, QuantizationError, SourceError
from goldstick.hf.example_inputs import inputs_beside
from goldstick.hf.names import import_models, quiet_libraries
from goldstick.jobs.load.plain_module import compare_stored
from goldstick.jobs.proof.file_proof import compare_files
from goldstick.jobs.proof.observation import Observation
from goldstick.jobs.proof.observe_streamed import observe_checkpoint, observe_rounded
from goldstick.jobs.proof.proof import compare
from goldstick.jobs.proof.tensor_proof import compare_tensors
from goldstick.recipes import Recipe


def work(request: dict[str, Any]) -> dict[str, Any]:
    """The findings for a request."""
    directory = Path(request["directory"])
    if request["method"] == "stored":
        return compare_stored(directory, request["tensors"])
    if request["method"] == "files":
        return compare_files(directory, request["files"])
    if request["method"] == "tensors":
        return compare_tensors(directory, Path(request["source"]), request["recipe"], request["errors"])
    try:
        found = observe_checkpoint(
            directory, attention=request.get("attention"), buffers=request.get("buffers"), like=request.get("inputs"),
            device=_device(request),
        )  # fmt: skip
        if request["method"] == "observe":
            return {"observed": found.summary()}
        compared = compare(_expected(request), found) | {name: request.get(name) for name in ("attention", "buffers")}
    except NotRunError as error:
        return {"not_run": str(error)}
    except QuantizationError:  # NaN
        _refuse_overflow(request)
        raise
    if not compared["passed"]:
        _refuse_overflow(request)
    return compared


def _refuse_overflow(request: Mapping[str, Any]) -> None:
    """Say so where the float model itself gives NaN or infinity, so that no checkpoint of it could pass a proof."""
    if "source" not in request:
        return
    try:
        inputs = inputs_beside(Path(request["directory"]))
        finite = bool(torch.isfinite(observe_checkpoint(Path(request["source"]), inputs=inputs).outputs).all())
    except QuantizationError:
        finite = False
    if not finite:
        raise SourceError(
            f"The float model in {request['source']} itself gives NaN or infinity on the proof's inputs: its "
            "activations overflow the dtype of its config, or its weights are damaged. Nothing can be "
            "proven of it; convert it to bfloat16 or float32 first (load it with transformers and that dtype, and "
            "save_pretrained)."
        )


def _device(request: Mapping[str, Any]) -> torch.device:
    return torch.device(request.get("device", "cpu"))


def _expected(request: dict[str, Any]) -> Observation:
    if "expected" in request:
        outputs = load_file(request["expected"])["outputs"]
        return Observation(outputs=outputs, perplexity=request["perplexity"])
    inputs = inputs_beside(Path(request["directory"]))
    return observe_rounded(Path(request["source"]), Recipe.load(request["recipe"]), inputs, _device(request))


@no_collection()
def prepare() -> None:
    """Import what every proof of a model of transformers needs, before it is known which."""
    quiet_libraries()
    import_models()


def main() -> int:
    """Read the request, write the result."""
    end_with_the_parent()
    end_without_collection()
    quiet_libraries()
    give_large_blocks_back()
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        result = work(request)
    except GoldstickError as error:
        print(error, file=sys.stderr)
        return 1
    Path(request["result"]).write_text(json.dumps(result), encoding="utf-8")
    return 0
