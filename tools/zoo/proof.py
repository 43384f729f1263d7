"""Proofs without the seconds that a fresh Python takes to import everything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from goldstick.errors import NotRunError
from goldstick.jobs.proof import worker
from goldstick.jobs.proof.observation import Observation


def prove_here(directory: Path, request: Mapping[str, Any], expected: Observation | None) -> dict[str, Any]:
    """What the worker of a proof does, in this process."""
    full = dict(request, directory=str(directory))
    file = directory / "expected.tmp"
    if expected is not None:
        save_file({"outputs": expected.outputs}, file)
        full |= {"expected": str(file), "perplexity": expected.perplexity}
    try:
        found = worker.work(json.loads(json.dumps(full)))
    finally:
        file.unlink(missing_ok=True)
    if "not_run" in found:
        raise NotRunError(found["not_run"])
    return found
