"""A recipe that prunes and fine-tunes in a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FEW: dict[str, Any] = {"steps": 2, "norm_batches": 0}


def pruning_recipe(source: Path, rate: float, *after: Any, **options: Any) -> dict[str, Any]:
    """Prune at a rate, fine-tune, and do what comes ``after``; the text lies in ``source``."""
    calibration = {"dataset": str(source / "text.txt"), "samples": 6, "seq_len": 16}
    stages = [{"scop": {"rate": rate, "training": FEW, **options}}, {"finetune": {"training": FEW}}, *after]
    return {"stages": stages, "calibration": calibration}
