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
