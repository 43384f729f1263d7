"""Quantize with llm-compressor: ``PYTHON run_llm_compressor.py SPEC.json``, by the Python that has it installed.

Everything is the tool's default but for the scheme, the data (the windows given, in order, unshuffled) and the number
of windows that pass the model together.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

LINEARS = "(q|k|v|o|gate|up|down)_proj"


def main() -> None:
    """Quantize, save, and write how long each part took."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    # AWQ pins memory for a faster copy to a GPU, which fails on a host without one.
    IntermediatesCache.pin_memory = lambda *_, **__: None  # type: ignore[method-assign]
    began = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(spec["model"])
    ids = load_file(spec["windows"])["calibration"]
    rows = {"input_ids": ids.tolist(), "attention_mask": [[1] * ids.shape[1]] * len(ids)}
    loaded = time.perf_counter()
    oneshot(
        model=model,
        tokenizer=tokenizer,
        dataset=Dataset.from_dict(rows),
        recipe=recipe(spec),
        num_calibration_samples=len(ids),
        max_seq_length=ids.shape[1],
        shuffle_calibration_samples=False,
        batch_size=spec["batch_size"],
    )
    quantized = time.perf_counter()
    model.save_pretrained(spec["output"], save_compressed=True)
    tokenizer.save_pretrained(spec["output"])
    saved = time.perf_counter()
    times = {"load": loaded - began, "quantize": quantized - loaded, "write": saved - quantized}
    versions = {name: version(name) for name in ("llmcompressor", "compressed-tensors", "transformers", "torch")}
    times |= {"quantize_and_write": saved - began, "processor_seconds": time.process_time()}
    Path(spec["times"]).write_text(json.dumps({**times, "versions": versions}))


def recipe(spec: dict[str, Any]) -> list[Any]:
    """The modifiers of a method."""
    scheme: dict[str, Any] = {"ignore": ["lm_head"]}
    if spec.get("preset"):
        scheme |= {"targets": "Linear", "scheme": spec["preset"]}
    else:
        scheme["config_groups"] = groups(spec)
    gptq, rounding = GPTQModifier(**scheme), QuantizationModifier(**scheme)
    return {
        "rtn": [rounding],
        "gptq": [gptq],
        "awq": [AWQModifier(), rounding],
        "awq-gptq": [AWQModifier(), gptq],
        "smoothquant-gptq": [SmoothQuantModifier(smoothing_strength=0.8), gptq],
    }[spec["method"]]


def groups(spec: dict[str, Any]) -> dict[str, Any]:
    """The scheme; layers whose inputs the group size does not divide get a scale for each row."""
    activations = None
    if spec["activation_bits"]:
        activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}

    def group(targets: list[str], size: int | None) -> dict[str, Any]:
        weights = {
            "num_bits": spec["bits"],
            "type": "int",
            "symmetric": True,
            "strategy": "group" if size else "channel",
            "group_size": size,
            **spec["options"],
        }
        return {"targets": targets, "weights": weights, "input_activations": activations}

    if not spec["by_row"]:
        return {"group_0": group(["Linear"], spec["group_size"])}
    rest = "|".join(spec["by_row"])
    return {
        "group_0": group([f"re:.*\\.(?!({rest})$){LINEARS}$"], spec["group_size"]),
        "group_1": group([f"re:.*\\.({rest})$"], None),
    }


if __name__ == "__main__":
    main()
