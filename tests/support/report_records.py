"""Layers as reports tell of them."""

from __future__ import annotations

from typing import Any

from goldstick.report import LayerRecord


def record(name: str, **changes: Any) -> LayerRecord:
    """A layer of 64 x 32 that GPTQ brought to 4 bits."""
    fields: dict[str, Any] = {
        "name": name,
        "shape": (64, 32),
        "dtype": "bfloat16",
        "bytes_before": 4096,
        "bytes_after": 1152,
        "scheme": "w4a16-g128",
        "algorithm": "gptq",
        "weight_sqnr_db": 21.5,
        "max_abs_error": 0.01,
    }
    return LayerRecord(**{**fields, **changes})
