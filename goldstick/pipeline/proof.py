"""Proof: a checkpoint read back in a fresh process gives what the model in memory gave."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from goldstick.core.freed_memory import return_freed_memory
from goldstick.errors import CheckpointError
from goldstick.pipeline.observation import Observation

#: Largest difference of outputs that is called equal, relative to the largest output. The same machine gives 0.
TOLERANCE = 1e-5
ProofMethod = Literal["outputs", "tensors"]
#: Largest relative difference of perplexities that is called equal.
PERPLEXITY_TOLERANCE = 1e-4


def prove(directory: Path, request: Mapping[str, Any], expected: Observation | None) -> dict[str, Any]:
    """Compare a checkpoint with what it should hold, in a fresh process.

    Args:
        directory: The checkpoint.
        request: ``method`` (``outputs`` or ``tensors``) and what the method needs; see ``prove_worker``.
        expected: What the model in memory gave; without it the worker rebuilds that model from source and recipe.

    Returns:
        The findings, ``passed`` among them, as plain data for the manifest.

    Raises:
        CheckpointError: The worker could not do it; the message is its own.
    """
    gc.collect()  # a model lies in circles
    return_freed_memory()
    with tempfile.TemporaryDirectory(prefix="goldstick-proof-") as folder:
        full = dict(request, directory=str(directory), result=str(Path(folder) / "result.json"))
        if expected is not None:
            save_file({"outputs": expected.outputs}, Path(folder) / "expected.safetensors")
            full |= {"expected": str(Path(folder) / "expected.safetensors"), "perplexity": expected.perplexity}
        task = Path(folder) / "request.json"
        task.write_text(json.dumps(full), encoding="utf-8")
        command = [sys.executable, "-m", "goldstick.pipeline.prove_worker", str(task)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        result = Path(full["result"])
        if process.returncode or not result.exists():
            lines = process.stderr.strip().splitlines() or [f"it ended with code {process.returncode}"]
            raise CheckpointError(f"The proof of {directory} could not be made: {lines[-1]}")
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def compare(expected: Observation, found: Observation) -> dict[str, Any]:
    """Differences of two observations, and whether they count as equal."""
    if expected.outputs.shape != found.outputs.shape:
        raise CheckpointError("The reloaded model's output has another shape.")
    difference = float((expected.outputs - found.outputs).abs().max()) if expected.outputs.numel() else 0.0
    largest = float(expected.outputs.abs().max()) if expected.outputs.numel() else 0.0
    finite = bool(torch.isfinite(found.outputs).all())
    return {
        "method": "outputs",
        "max_abs_difference": difference,
        "largest_output": largest,
        "perplexity_expected": expected.perplexity,
        "observed": found.summary(),
        "passed": finite
        and difference <= TOLERANCE * max(largest, 1e-30)
        and _same_perplexity(expected.perplexity, found.perplexity),
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
