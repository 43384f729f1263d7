"""The fresh process of a proof: ``python -m goldstick.pipeline.prove_worker REQUEST.json``.

The request names the checkpoint ``directory``, the ``result`` file to write, and a ``method``:

- ``outputs``: load the checkpoint and compare its outputs with those in the file ``expected``, or, without one, with
  those of the float model in ``source`` quantized in memory by ``recipe``;
- ``observe``: only say what the checkpoint gives;
- ``stored``: compare the hash of every tensor with ``tensors``;
- ``tensors``: read source and checkpoint tensor by tensor and compare each weight's error with the recorded one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from goldstick.errors import GoldstickError
from goldstick.formats.transformers_names import quiet_libraries
from goldstick.pipeline.load import load, load_float
from goldstick.pipeline.plain_module import compare_stored
from goldstick.pipeline.proof import Observation, compare, observe, set_buffer_dtypes
from goldstick.pipeline.tensor_proof import compare_tensors
from goldstick.recipes import Recipe
from goldstick.recipes.resolve import resolve
from goldstick.recipes.run import run
from goldstick.structure.network import Network


def work(request: dict[str, Any]) -> dict[str, Any]:
    """The findings for a request."""
    directory = Path(request["directory"])
    if request["method"] == "stored":
        return compare_stored(directory, request["tensors"])
    if request["method"] == "tensors":
        return compare_tensors(directory, Path(request["source"]), request["recipe"], request["errors"])
    model: Any = load(directory)
    if request.get("attention") and hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(request["attention"])  # kernels of attention differ in the last bits
    set_buffer_dtypes(model, request.get("buffers") or {})
    found = observe(model, directory)
    del model  # before the other one is built
    if request["method"] == "observe":
        return {"observed": found.summary()}
    return compare(_expected(request), found) | {name: request.get(name) for name in ("attention", "buffers")}


def _expected(request: dict[str, Any]) -> Observation:
    if "expected" in request:
        outputs = load_file(request["expected"])["outputs"]
        return Observation(outputs=outputs, perplexity=request["perplexity"])
    source = Path(request["source"])
    network = Network(load_float(source))
    run(network, resolve(Recipe.load(request["recipe"]).stages, network))
    return observe(network.model, source)


def main() -> int:
    """Read the request, write the result."""
    quiet_libraries()
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        result = work(request)
    except GoldstickError as error:
        print(error, file=sys.stderr)
        return 1
    Path(request["result"]).write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
