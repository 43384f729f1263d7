"""Recipes that several tests use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

INT4: dict[str, Any] = {"scheme": "w4a16-g32", "group_size_mismatch": "channel"}


DYNAMIC_CACHE: dict[str, Any] = {"kv_cache": {"mode": "dynamic"}}


def recipe(sources: Path, *stages: Any) -> dict[str, Any]:
    calibration = {"dataset": str(sources / "text.txt"), "samples": 4, "seq_len": 32}
    return {"stages": list(stages), "calibration": calibration}
