"""Files beside config.json that say how weights are quantized where config.json has no ``quantization_config``.

Model Optimizer writes ``hf_quant_config.json``, AutoGPTQ ``quantize_config.json``, and AutoAWQ wrote
``quant_config.json``, with words of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from goldstick.formats.awq import AWQ
from goldstick.formats.gptq import GPTQ
from goldstick.formats.modelopt import BESIDE_CONFIG, beside_config

Table = Mapping[str, Any]


def _of_autogptq(table: Table) -> dict[str, Any] | None:
    return {**table, "quant_method": table.get("quant_method") or GPTQ.method} if "bits" in table else None


def _of_autoawq(table: Table) -> dict[str, Any] | None:
    words = {"w_bit": "bits", "q_group_size": "group_size"}
    found = {words.get(key, key): value for key, value in table.items()}
    return {**found, "quant_method": found.get("quant_method") or AWQ.method} if "bits" in found else None


#: Name of the file → the ``quantization_config`` that it stands for, ``None`` where it says nothing.
BESIDE: Mapping[str, Callable[[Table], dict[str, Any] | None]] = {
    BESIDE_CONFIG: beside_config,
    "quantize_config.json": _of_autogptq,
    "quant_config.json": _of_autoawq,
}
#: Those that transformers does not look for, so that it takes such a checkpoint for one in float.
OVERLOOKED = ("quantize_config.json", "quant_config.json")
