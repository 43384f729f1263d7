"""The file that all these tools add to, and how each begins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from goldstick.hf.names import quiet_libraries
from goldstick.jobs.save import finish
from tests.support.proofs import prove_here

RESULTS = Path("benchmarks/results/consumers.json")


def begun(results: Path) -> dict[str, Any]:
    """What the results hold so far. From now on there is one thread, and proofs in this process, which saves time."""
    quiet_libraries()
    torch.set_num_threads(1)
    finish.prove = prove_here
    kept: dict[str, Any] = json.loads(results.read_text()) if results.is_file() else {}
    return kept


def keep(results: Path, kept: Mapping[str, Any]) -> None:
    """Write the results as JSON that every reader takes, which has no word for NaN.

    Raises:
        ValueError: A number is not finite.
    """
    text = json.dumps(kept, indent=1, sort_keys=True, allow_nan=False)
    results.write_text(text + "\n", encoding="utf-8")
