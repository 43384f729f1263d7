"""How fast a checkpoint writes beside the model it was made from: a line of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from goldstick.jobs.bench.decode import can_write, tokens_a_second
from goldstick.jobs.load.load import load
from goldstick.jobs.optimize.optimize import optimize

SECONDS = 1.0


def compare_speed(baseline: Path, model: Path) -> dict[str, Any]:
    """Tokens a second of both, one text at a time, each as ``goldstick generate`` runs it; one is in memory at a time.

    Args:
        baseline: The checkpoint directory of the float model.
        model: The compressed one's; it is rearranged for speed (:func:`goldstick.optimize`).

    Returns:
        ``before``, ``after`` and ``threads``; nothing where the models do not write.
    """
    loaded: Any = load(baseline)
    if not can_write(loaded):
        return {}
    before = tokens_a_second(loaded, SECONDS)
    del loaded
    faster: Any = load(model)
    optimize(faster)
    return {"before": before, "after": tokens_a_second(faster, SECONDS), "threads": torch.get_num_threads()}
