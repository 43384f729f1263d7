"""What pages of reports are made of."""

from __future__ import annotations

import math
from typing import Any

from goldstick.evaluation.metrics import Items, uncertainty
from goldstick.report import LayerRecord, Report, SizeSummary
from goldstick.report.model_comparison import ModelComparison, ModuleDifference
from goldstick.report.sensitivity import LayerSensitivity, Sensitivity
from tests.support.report_records import record


def layer(name: str, **changes: Any) -> LayerRecord:
    notes = {"tokens": 512, "dead_inputs": 2, "output_error": 0.5, "rtn_output_error": 2.0}
    return record(name, **{"notes": notes, **changes})


def ignored(name: str, **changes: Any) -> LayerRecord:
    nothing: dict[str, Any] = {
        "bytes_after": 4096,
        "scheme": None,
        "algorithm": None,
        "weight_sqnr_db": None,
        "max_abs_error": None,
    }
    return layer(name, **{**nothing, "notes": {}, "reason": "a norm", **changes})


def evaluation(values: list[float]) -> dict[str, Any]:
    items = Items(values=values)
    result = {
        "protocol": "loglik@1",
        "n": len(values),
        "metrics": {"accuracy": items.metric()},
        "tokenizer": "f00d",
        "details": uncertainty({"accuracy": items}),
    }
    return {"tasks": {"boolq": result}}


def report(*layers: LayerRecord, **changes: Any) -> str:
    fields: dict[str, Any] = {
        "goldstick_version": "0.1.0",
        "model": "tiny",
        "recipe": {"stages": [{"gptq": {"damping": 0.01}}], "description": "four bits"},
        "format": "native",
        "layers": layers,
        "size": SizeSummary.of(layers),
        "calibration": {"dataset": "wikitext2", "tokens": 1024, "unknown_rate": 0.125},
        "timing": {"quantize_and_write": 60.0, "prove": 5.0},
        "peak_memory": 3 * 2**20,
        "environment": {"torch": "2.13.0"},
        "proof": {"method": "outputs", "max_abs_difference": 0.0, "largest_output": 12.5, "passed": True},
    }
    return Report(**{**fields, **changes}).to_json()


LAYERS = (
    layer("model.layers.0.q_proj.weight"),
    layer("model.layers.1.q_proj.weight", weight_sqnr_db=math.inf, notes={"tokens": 7, "fallback": "too few inputs"}),
    ignored("model.norm.weight"),
)


SENSITIVITY = Sensitivity(
    model="tiny",
    inputs="2 samples of 8 tokens from text",
    tokens=16,
    grid={"granularity": "group", "group_size": 32, "symmetric": True, "range_search": "mse"},
    widths=(2, 4),
    layers=tuple(
        LayerSensitivity(
            name=f"layers.{number}.up", shape=(8, 32), elements=256, kl={2: 0.5, 4: 0.01}, bits_per_weight={2: 3, 4: 5}
        )
        for number in range(3)
    ),
)


def found(name: str, sqnr_db: float, **changes: Any) -> ModuleDifference:
    fields: dict[str, Any] = {
        "name": name,
        "first_kind": "Linear",
        "second_kind": "Linear",
        "shape": (4, 16, 64),
        "calls": 1,
        "sqnr_db": sqnr_db,
        "cosine": 0.5,
        "max_abs": 0.25,
    }
    return ModuleDifference(**{**fields, **changes})


def comparison(*modules: ModuleDifference, **changes: Any) -> ModelComparison:
    fields: dict[str, Any] = {"first": "a", "second": "b", "inputs": "noise", "threshold": 10.0, "modules": modules}
    return ModelComparison(**{**fields, **changes})


MODULES = (
    found("embed", math.inf),
    found("layers.0.q", 25.0, second_kind="QuantizedLinear"),
    found("layers.0", 9.5),
    found("layers.1.q", 4.0),
    found("layers.1", 12.0),
    found("", 15.0),
)


def _candidates(*measured: float | None) -> list[dict[str, Any]]:
    known = zip(("w2a16-channel", "w4a16-channel", "float"), (100, 200, 800), (0.3, 0.01, 0.0), measured, strict=True)
    return [
        {"scheme": scheme, "bytes": size, "loss": loss, "first": loss, "second": loss, "measured": of}
        for scheme, size, loss, of in known
    ]


SEARCH: dict[str, Any] = {
    "model": "tiny",
    "bytes": 1400,
    "bytes_of_source": 2600,
    "bits_per_weight": 5.5,
    "asked": {"size": 1500, "metric": "perplexity"},
    "text": "2 rows of 8 tokens from text",
    "held_out": "text, rows that were not searched on",
    "rounded": "rounded to nearest",
    "whole": {"kl": 0.02, "half_width": 0.005, "grown": 0.03, "rows": 4},
    "looks": [],
    "groups": [
        {"name": f"model.layers.{number}.up", "weights": 400, "chosen": "w4a16-channel", "candidates": of}
        for number, of in enumerate((_candidates(0.3, 0.02, 0.0), _candidates(None, None, 0.0)))
    ],
    "front": [
        {"bytes": 1200, "loss": 0.6, "measured": 0.5, "grown": 0.4, "picks": [0, 0]},
        {"bytes": 1400, "loss": 0.02, "measured": None, "grown": None, "picks": [1, 1]},
        {"bytes": 2600, "loss": 0.0, "measured": 0.0, "grown": 0.0, "picks": [2, 2]},
    ],
    "uniform": [{"scheme": "w4a16-channel", "bytes": 1400, "measured": 0.03, "grown": 0.05}],
    "rival": {"name": "w4a16-channel", "bytes": 1400, "kl": 0.04, "half_width": 0.01, "grown": 0.05, "rows": 4},
    "beside": [{"name": "another", "bytes": 1500, "kl": 0.05, "grown": 0.06}],
}
"""The record of a search, as its page reads it."""
