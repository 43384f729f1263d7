"""Proof: a checkpoint read back in a fresh process gives what the model in memory gave."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from goldstick.core.freed_memory import return_freed_memory
from goldstick.core.fresh_process import run_module
from goldstick.core.temporary_folder import temporary_folder
from goldstick.errors import CheckpointError, NotRunError, OutputError
from goldstick.jobs.proof.observation import Observation

#: Largest difference of outputs that is called equal, relative to the largest output. The same machine gives 0.
TOLERANCE = 1e-5
#: Largest difference that is taken for what a network makes of sums in another order, where every tensor is as written.
AMPLIFIED = 1e-3
ProofMethod = Literal["outputs", "tensors"]
#: Largest relative difference of perplexities that is called equal.
PERPLEXITY_TOLERANCE = 1e-4

#: What lies in the folder of a proof.
_REQUEST, _EXPECTED, _RESULT = "request.json", "expected.safetensors", "result.json"


def prove(directory: Path, request: Mapping[str, Any], expected: Observation | None) -> dict[str, Any]:
    """Compare a checkpoint with what it should hold, in a fresh process.

    Args:
        directory: The checkpoint.
        request: ``method`` (``outputs`` or ``tensors``) and what the method needs; see ``prove_worker``.
        expected: What the model in memory gave; without it the worker rebuilds that model from source and recipe.

    Returns:
        The findings, ``passed`` among them, as plain data for the manifest.

    Raises:
        NotRunError: The model does not run on any inputs that goldstick knows of.
        CheckpointError: The worker could not do it; the message is its own.
        OutputError: There is no room for what the worker reads.
    """
    gc.collect()  # a model lies in circles
    return_freed_memory()
    with temporary_folder("proof", (_REQUEST, _EXPECTED, _RESULT)) as folder:
        result = folder / _RESULT
        full = dict(request, directory=str(directory), result=str(result))
        try:
            if expected is not None:
                save_file({"outputs": expected.outputs}, folder / _EXPECTED)
                full |= {"expected": str(folder / _EXPECTED), "perplexity": expected.perplexity}
                full |= {"inputs": dict(expected.inputs) or None}
            (folder / _REQUEST).write_text(json.dumps(full), encoding="utf-8")
        except (OSError, SafetensorError) as error:
            raise OutputError(
                f"The proof of {directory} cannot be made, since {folder} cannot be written: {error}. Free space, or "
                "name another place for temporary files by TMPDIR."
            ) from error
        failure = run_module("goldstick.jobs.proof.worker", str(folder / _REQUEST))
        if failure is not None or not result.exists():
            raise CheckpointError(f"The proof of {directory} could not be made: {failure or 'it left no result.'}")
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    if "not_run" in found:
        raise NotRunError(found["not_run"])
    return found


def compare(expected: Observation, found: Observation) -> dict[str, Any]:
    """Differences of two observations, and whether they count as equal."""
    if expected.outputs.shape != found.outputs.shape:
        raise CheckpointError("The reloaded model's output has another shape.")
    difference = float((expected.outputs - found.outputs).abs().max()) if expected.outputs.numel() else 0.0
    largest = float(expected.outputs.abs().max()) if expected.outputs.numel() else 0.0
    sound = bool(torch.isfinite(found.outputs).all()) and _same_perplexity(expected.perplexity, found.perplexity)
    return {
        "method": "outputs",
        "max_abs_difference": difference,
        "largest_output": largest,
        "perplexity_expected": expected.perplexity,
        "observed": found.summary(),
        "passed": sound and difference <= TOLERANCE * max(largest, 1e-30),
        "close": sound and difference <= AMPLIFIED * max(largest, 1e-30),
    }


def _same_perplexity(expected: float | None, found: float | None) -> bool:
    if expected is None or found is None:
        return True  # no tokenizer on one side: there is no text to read
    return abs(found - expected) <= PERPLEXITY_TOLERANCE * expected


def require(proof: Mapping[str, Any], directory: Path) -> None:
    """Raise where a proof did not pass."""
    if not proof["passed"]:
        raise CheckpointError(
            f"The checkpoint in {directory} was written and read back, and does not give what the model in memory "
            "gave: "
            f"{json.dumps({k: v for k, v in proof.items() if k != 'observed'})}. Do not use it; please report this."
        )
